"""`flic bench`: measures the speed of the engine on this machine."""

import json
from dataclasses import asdict

from flic.cli.check import Format
from flic.cli.screen import say, table


def bench(format: Format = "text") -> None:
    """Measure the stacked engine against the sequential one, in one run and one thread."""
    from flic_paper.benchmark.speed import measure

    result = measure()
    if format == "json":
        say(json.dumps(asdict(result)))
        return
    rows = [
        ["rounds, 10 clients at batch 100: over plain PyTorch", _times(result.rounds_ratio)],
        [
            "… over the engine itself with stacks of one",
            _times(result.rounds_ratio_to_stack_of_one),
        ],
        [
            "pre-training, 100 clients at batch 10: over plain PyTorch",
            _times(result.pretrain_ratio),
        ],
        [
            "… over the engine itself with stacks of one",
            _times(result.pretrain_ratio_to_stack_of_one),
        ],
        [
            "rounds, 4 clients with images at batch 100: over plain PyTorch",
            _times(result.images_ratio),
        ],
        ["client-steps a second in rounds", f"{result.rounds_client_steps_per_second:,.0f}"],
        [
            "client-steps a second in pre-training",
            f"{result.pretrain_client_steps_per_second:,.0f}",
        ],
        [
            "client-steps a second in rounds with images",
            f"{result.images_client_steps_per_second:,.0f}",
        ],
        ["memory of a client in training", f"{result.kib_per_client:,.0f} KiB"],
        ["share of the matrix product's peak in rounds", f"{100 * result.peak_share:.1f} %"],
        ["peak of a float32 matrix product", f"{result.peak_gflops:.0f} GF/s"],
    ]
    table("Engine on this machine, one thread", ["figure", "value"], rows)


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×"

"""Speed of the engine: stacked against one client after another, in one run and one thread.

The workload has the toy problems' size: 100 clients with 5 to 50 features, 3 of 20 classes each,
400 rows, the paper's networks, 100 anchor samples a class, FLIC-HL with all its terms; and once
more 4 clients with 100 images of 28×28 pixels. Times are
CPU seconds of interleaved repetitions; the best of each variant counts, since a busy machine only
ever adds time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.engine.engine import Engine, Job
from flic.method_settings import MethodSettings
from flic.seeding import generator
from flic_paper.benchmark.sequential import SequentialClient

CLIENTS, CLASSES, ROWS, ACTIVE = 100, 20, 400, 10
LOCAL_EPOCHS, SHARED_EPOCHS, PRETRAINING_EPOCHS = 4, 1, 2
REPETITIONS = 4
IMAGE_CLIENTS, IMAGE_ROWS, SIDE = 4, 100, 28


@dataclass(frozen=True)
class Benchmark:
    """Measured figures; ratios are sequential time over stacked time."""

    rounds_ratio: float  # 10 clients at batch 100, against plain PyTorch
    pretrain_ratio: float  # 100 clients at batch 10, against plain PyTorch
    rounds_ratio_to_stack_of_one: float
    pretrain_ratio_to_stack_of_one: float
    images_ratio: float  # rounds of 4 clients with images at batch 100, against plain PyTorch
    rounds_client_steps_per_second: float
    pretrain_client_steps_per_second: float
    images_client_steps_per_second: float
    kib_per_client: float  # parameters, gradients and optimiser state while a client trains
    peak_share: float  # of the machine's own float32 matrix product, in rounds
    peak_gflops: float


def measure() -> Benchmark:
    """Run the benchmark; takes about half a minute."""
    torch.set_num_threads(1)
    bench, images = _Bench(_vectors()), _Bench(_images())
    active = bench.names[:: CLIENTS // ACTIVE]
    rounds = bench.race("update", active, stacked_width=ACTIVE)
    pretrain = bench.race("prepare", bench.names, stacked_width=CLIENTS)
    pictures = images.race("update", images.names, stacked_width=IMAGE_CLIENTS)
    per_epoch = ROWS // 100
    steps = ACTIVE * per_epoch * (LOCAL_EPOCHS + SHARED_EPOCHS)
    pretrain_steps = CLIENTS * PRETRAINING_EPOCHS * ROWS // 10
    image_steps = IMAGE_CLIENTS * (LOCAL_EPOCHS + SHARED_EPOCHS)
    peak = _peak_gflops()
    return Benchmark(
        rounds_ratio=rounds.plain / rounds.stacked,
        pretrain_ratio=pretrain.plain / pretrain.stacked,
        rounds_ratio_to_stack_of_one=rounds.alone / rounds.stacked,
        pretrain_ratio_to_stack_of_one=pretrain.alone / pretrain.stacked,
        images_ratio=pictures.plain / pictures.stacked,
        rounds_client_steps_per_second=steps / rounds.stacked,
        pretrain_client_steps_per_second=pretrain_steps / pretrain.stacked,
        images_client_steps_per_second=image_steps / pictures.stacked,
        kib_per_client=bench.kib_per_client(),
        peak_share=bench.gflop("update", active) / rounds.stacked / peak,
        peak_gflops=peak,
    )


@dataclass(frozen=True)
class _Race:
    """CPU seconds of three ways to do the same work."""

    stacked: float
    alone: float  # the engine with stacks of one
    plain: float  # plain PyTorch, one client after another


class _Bench:
    def __init__(self, data: FederatedData) -> None:
        settings = MethodSettings.model_validate(
            {
                "training": {"local": f"{LOCAL_EPOCHS} epochs", "shared": "1 epoch"},
                "pretraining": {"epochs": PRETRAINING_EPOCHS},
            }
        )
        self.settings = settings
        self.engine = Engine.of("flic-hl", settings, data, seed=0)
        self.clients, method = self.engine.clients, self.engine.method
        self.names = self.clients.names
        self.initial = {
            name: method.init_client(self.clients[name], self.clients.architecture(name))
            for name in self.names
        }
        self.server = method.init_server()

    def work(self, stage: str, names: list[str], width: int) -> None:
        for stack in self.clients.split(names, stack_width=width):
            states = [self.initial[name] for name in stack]
            self.engine.do(Job(stage, self.server, stack, states))

    def plainly(self, stage: str, names: list[str]) -> None:
        for name in names:
            client = SequentialClient(
                self.clients[name], self.initial[name], self.server, self.settings
            )
            rng = generator(0, stage, 0, name)
            client.update(rng) if stage == "update" else client.pretrain(rng)

    def race(self, stage: str, names: list[str], *, stacked_width: int) -> _Race:
        """Best CPU seconds of each way; if clients are many, a tenth gives the sequential times."""
        few = names if len(names) <= ACTIVE else names[:: len(names) // ACTIVE]
        self.work(stage, names, stacked_width)
        times = [
            (
                _cpu_seconds(lambda: self.work(stage, names, stacked_width)),
                _cpu_seconds(lambda: self.work(stage, few, 1)),
                _cpu_seconds(lambda: self.plainly(stage, few)),
            )
            for _ in range(REPETITIONS)
        ]
        stacked, alone, plain = map(min, zip(*times, strict=True))
        share = len(names) / len(few)
        return _Race(stacked, alone * share, plain * share)

    def gflop(self, stage: str, names: list[str]) -> float:
        with FlopCounterMode(display=False) as counter:
            self.work(stage, names, len(names))
        return counter.get_total_flops() / 1e9

    def kib_per_client(self) -> float:
        """KiB that a client trains with, mean over clients; padded features count."""
        total = 0
        for stack in self.clients.split(self.names, stack_width=CLIENTS):
            private = self.clients.stack(stack, [self.initial[name] for name in stack]).private
            total += sum(value.numel() * value.element_size() for value in private.values())
        return 4 * total / len(self.names) / 1024  # parameters, gradients, two moments


def _vectors() -> FederatedData:
    dims = [5 + round(45 * i / (CLIENTS - 1)) for i in range(CLIENTS)]
    schemas = [FeatureSchema(f"own-{d}", tuple(f"x{j}" for j in range(d))) for d in dims]
    return _federation(schemas, ROWS)


def _images() -> FederatedData:
    return _federation([FeatureSchema.of_images("images", SIDE, SIDE)] * IMAGE_CLIENTS, IMAGE_ROWS)


def _federation(schemas: Sequence[FeatureSchema], num_rows: int) -> FederatedData:
    clients = []
    for i, schema in enumerate(schemas):
        rng = generator(0, "bench", i)
        classes = torch.randperm(CLASSES, generator=rng)[:3]
        y = classes[torch.randint(3, (num_rows,), generator=rng)]
        rows = Split(torch.randn(num_rows, schema.dim, generator=rng) + 0.2 * y[:, None], y)
        clients.append(ClientData(f"client-{i:03d}", schema, rows, Split.empty(schema.dim), rows))
    return FederatedData("bench", Classification(CLASSES), tuple(clients))


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _peak_gflops() -> float:
    size = 2048
    a = torch.randn(size, size)
    best = min(_cpu_seconds(lambda: a @ a) for _ in range(REPETITIONS))
    return 2 * size**3 / best / 1e9

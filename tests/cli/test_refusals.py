"""Mistakes of a user end in a sentence: who, got, expected, what to do."""

import pytest

from flic.engine.checkpoint import DiskJournal

SETTINGS = {
    "unknown key": (["training.round=3"], ["training.round: unknown key; expected one of rounds"]),
    "unknown section": (["trainig.rounds=3"], ["trainig: unknown key; expected one of training"]),
    "wrong type": (
        ["training.rounds=many"],
        ['training.rounds: got "many"; expected a whole number'],
    ),
    "impossible value": (
        ["training.participation=1.5"],
        ["training.participation: got 1.5; expected 1 or less"],
    ),
    "no such layer": (
        ["embedding.hidden=[8, 0]"],
        ["embedding.hidden.1: got 0; expected more than 0"],
    ),
    "unknown choice": (
        ["anchors.layout=circle"],
        ["anchors.layout: got \"circle\"; expected 'random' or 'equidistant'"],
    ),
    "endless rounds": (
        ["training.rounds=1000000000000"],
        ["takes at least 931,322 GB of memory, most of it for training.rounds; this machine has"],
    ),
    "endless epochs": (
        ["training.local=1000000000000 epochs"],
        ["training and pretraining take at least 4,629 days; expected a day at most. Choose"],
    ),
    "endless pretraining": (
        ["pretraining.epochs=1000000000"],
        ["training and pretraining take at least 1 days; expected a day at most. Choose"],
    ),
    "epochs beyond all": (
        [f"training.local=1{'0' * 400} epochs"],
        ["training and pretraining take thousands of years; expected a day at most. Choose"],
    ),
    "wide network": (
        ["embedding.latent_dim=1000000000000"],
        ["takes at least 260,770 GB of memory, most of it for embedding and model; this machine"],
    ),
    "many clients": (
        ["data.num_clients=1000000000000"],
        ["takes at least 4,656,612 GB of memory, most of it for data.num_clients; this machine"],
    ),
    "many rows": (
        ["data.num_classes=100000000000000"],
        ["most of it for classes and rows of data"],
    ),
    "a number beyond all": (
        [f"training.rounds=1{'0' * 400}"],
        ["takes more memory than any machine has, most of it for training.rounds"],
    ),
    "unknown method": (["method=flick"], ['method: got "flick"; expected one of local, flic-cl']),
    "unknown rule": (
        ["training.personalisation=fedprox"],
        ["training.personalisation: got 'fedprox'; expected one of alone, fedavg-ft"],
    ),
    "unknown data": (
        ["data.problem=mnist"],
        ['data.problem: got "mnist"', "noisy-features, linear-mapping"],
    ),
    "impossible classes": (["data.classes_per_client=9"], ["expected from 2 to num_classes (8)"]),
    "not an assignment": (
        ["training.rounds"],
        ["--set 'training.rounds': expected key=value with a dotted key"],
    ),
    "bad length": (["training.local=10"], ['got 10; expected a length such as "10 epochs" or']),
    "nobody takes part": (
        ["training.participation=0.1"],
        ["0.1 of 6 clients rounds to no client; expected at least 0.167"],
    ),
    "equidistant in too few dimensions": (
        ["anchors.layout=equidistant", "embedding.latent_dim=3"],
        ["'equidistant' with 8 classes in a latent space of 3 dimensions", "Raise embedding"],
    ),
    "several at once": (
        ["training.rounds=-1", "embedding.latent_dim=0", "seed=x", "model.depth=3"],
        ["training.rounds: got -1", "embedding.latent_dim: got 0", 'seed: got "x"', "model.depth"],
    ),
}


@pytest.mark.parametrize(("settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_settings(flic_here, config, settings, expected):
    options = [word for setting in settings for word in ("--set", setting)]
    said = flic_here("run", config, "--out", "one", *options)
    assert said.code == 2
    assert said.err.startswith("flic: ")
    assert [words for words in expected if words not in said.err] == [], said.err
    if str(config) in said.err:  # the file is blamed, and what was typed beside it
        assert [own for own in settings if f"--set {own[:200]}" not in said.err] == []


def test_settings_refused_late_leave_no_folder(flic_here, config, tmp_path):
    flic_here("run", config, "--out", "one", "--set", "training.participation=0.1")
    assert not (tmp_path / "one").exists()


def test_settings_in_a_process_of_its_own(flic, config, tmp_path):
    said = flic("run", config, "--set", "training.round=3", "--set", "seed=-1", "--out", "one")
    assert said.code == 2
    heading, round, seed = said.err.splitlines()
    assert heading == f"flic: {config}, with --set training.round=3 --set seed=-1:"
    assert round.startswith("  training.round: unknown key; expected one of rounds, ")
    assert seed == "  seed: got -1; expected 0 or more"
    assert not (tmp_path / "one").exists()


FILES = {
    "bad TOML": (b"[training\nrounds = 3\n", "not valid TOML"),
    "not text": (b"\xff\xfe\x00", "cannot be read as UTF-8 text"),
    "no data": (b"seed = 3\n", "data: missing; this key is needed"),
    "empty": (b"", "data: missing; this key is needed"),
}


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES)
def test_files(flic_here, tmp_path, content, expected):
    (tmp_path / "bad.toml").write_bytes(content)
    said = flic_here("run", "bad.toml")
    assert said.code == 2
    assert said.err.startswith("flic: bad.toml:")
    assert expected in said.err


COMMANDS = {
    "missing file": (["run", "nowhere.toml"], 2, "nowhere.toml: no such file; expected settings"),
    "a folder": (["run", "."], 2, "cannot be read"),
    "neither": (["run"], 2, "got neither; expected CONFIG.toml or --resume DIR"),
    "both": (
        ["run", "tiny.toml", "--resume", "x"],
        2,
        "got both; expected CONFIG.toml or --resume DIR",
    ),
    "resume and set": (["run", "--resume", "x", "--set", "seed=1"], 2, "resumes the run as"),
    "resume and seed": (["run", "--resume", "x", "--seed", "1"], 2, "resumes the run as it"),
    "resume nowhere": (["run", "--resume", "x"], 1, "x holds no run: x/config.json is missing"),
    "resume a folder without a run": (["run", "--resume", "."], 1, "holds no run"),
    "negative seed": (["run", "tiny.toml", "--seed", "-1"], 2, "--seed"),
    "no workers": (["run", "tiny.toml", "--workers", "0"], 2, "--workers"),
    "a crowd": (
        ["run", "tiny.toml", "--workers", "99999999999999999999"],
        2,
        "--workers 99999999999999999999: takes more memory than any machine has, most of it for",
    ),
    "unknown command": (["train"], 2, "train"),
    "unknown option": (["run", "tiny.toml", "--epochs", "3"], 2, "--epochs"),
    "out below a file": (["run", "tiny.toml", "--out", "tiny.toml/x"], 1, "tiny.toml/x"),
    "out is a file": (["run", "tiny.toml", "--out", "tiny.toml"], 1, "tiny.toml already holds"),
    "unknown methods": (
        ["compare", "tiny.toml", "--methods", "local,flick"],
        2,
        "--methods: got flick; expected names among local, flic-class",
    ),
    "no methods": (["compare", "tiny.toml", "--methods", ","], 2, "--methods: got nothing"),
    "seeds in words": (["compare", "tiny.toml", "--seeds", "few"], 2, "--seeds: got 'few'"),
    "no seeds": (["compare", "tiny.toml", "--seeds", "0"], 2, "expected a number of seeds such as"),
    "negative seeds": (["compare", "tiny.toml", "--seeds", "1,-2"], 2, "--seeds: got '1,-2'"),
    "compare nothing": (["compare"], 2, "CONFIG.toml"),
}


@pytest.mark.parametrize(("arguments", "code", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_commands(flic_here, config, arguments, code, expected):
    said = flic_here(*arguments)
    assert said.code == code
    assert expected in said.err


def test_a_bad_setting_of_one_method_is_named(flic_here, config):
    with config.open("a") as file:
        file.write("\n[methods.lda]\nmodel = { depth = 3 }\n")
    said = flic_here("compare", config, "--methods", "lda", "--out", "all")
    assert said.code == 2
    assert "[methods.lda]:\n  model.depth: unknown key" in said.err


def test_a_damaged_configuration_of_a_run(flic_here, config, tmp_path):
    flic_here("run", config, "--out", "one", "--quiet")
    (tmp_path / "one" / "config.json").write_text('{"seed": 0')
    said = flic_here("run", "--resume", "one")
    assert said.code == 1
    assert "config.json is damaged" in said.err


def test_a_damaged_checkpoint_is_told_and_the_run_ends_the_same(flic_here, config, tmp_path):
    flic_here("run", config, "--out", "one", "--quiet")
    rounds = (tmp_path / "one" / "rounds.json").read_bytes()
    (tmp_path / "one" / "checkpoints" / "00004.server.safetensors").write_bytes(b"rust")
    said = flic_here("run", "--resume", "one")
    assert said.code == 0
    assert (
        "is damaged (its digest is another): it is not used; the run goes on from step 3."
        in said.err
    )
    assert (tmp_path / "one" / "rounds.json").read_bytes() == rounds


DIVERGING = [
    "--set",
    "training.optimiser.kind=sgd",
    "--set",
    "training.optimiser.learning_rate=1e30",
]


@pytest.mark.parametrize("method", ["local", "flic-hl", "fedhenn", "within-space"])
def test_a_diverging_loss_stops_the_run_and_keeps_the_last_good_state(
    flic_here, config, tmp_path, method
):
    options = [*DIVERGING, "--set", "pretraining.epochs=0", "--set", f"method={method}"]
    said = flic_here("run", config, "--out", "one", *options)
    assert said.code == 1
    assert "flic: client 'client-00" in said.err
    assert "round 1, stage 'update'" in said.err
    assert "ower" in said.err
    assert "What was finished before is kept." in said.err
    journal = DiskJournal(tmp_path / "one" / "checkpoints")
    assert [record["round"] for record in journal.records] == [0]
    assert journal.notices == []
    assert all(value.isfinite().all() for value in journal.server.shared.values())


@pytest.mark.parametrize(("method", "shared"), [("local", "0 steps"), ("hetfedrep", "1 steps")])
def test_a_single_diverging_step_is_noticed_at_once(flic_here, config, tmp_path, method, shared):
    once = ["training.local=1 steps", f"training.shared={shared}", "training.batch_size=1000"]
    settings = [*once, "pretraining.epochs=0", f"method={method}"]
    options = [word for setting in settings for word in ("--set", setting)]
    said = flic_here("run", config, "--out", "one", *DIVERGING, *options)
    assert said.code == 1
    assert "round 1, stage 'update'" in said.err
    journal = DiskJournal(tmp_path / "one" / "checkpoints")
    assert [record["round"] for record in journal.records] == [0]


def test_a_diverging_pretraining_names_its_stage(flic_here, config):
    said = flic_here("run", config, "--out", "one", *DIVERGING)
    assert said.code == 1
    assert "round 0, stage 'prepare'" in said.err


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["identity", "full"])
def test_a_latent_space_larger_than_everything_works(flic_here, config, covariance):
    options = ["--set", "embedding.latent_dim=300", "--set", f"anchors.covariance={covariance}"]
    options += ["--set", "training.rounds=1", "--set", "training.local=1 epoch"]
    said = flic_here("run", config, "--out", "one", *options)
    assert said.code == 0, said.err
    assert "nan" not in said.out

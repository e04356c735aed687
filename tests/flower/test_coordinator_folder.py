"""The coordinator's folder and the rules of a round, without a network."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from flic.engine.rounds import Work
from flic.errors import ConfigError, Damaged, OtherRun, RunFolderError
from flic.flower.coordinator_folder import Coordinator
from flic.flower.exchange import Asked, Reply
from flic.flower.federation_settings import federation_settings
from flic.flower.log import LOG, events
from flic.flower.runner import SiloRunner
from flic.methods.protocol import Entry, Update
from hospitals import BETWEEN_MACHINES, settings_of
from sealing import CHANGES, sealed

NAMES = ["east", "north", "south"]


@pytest.fixture
def coordinator(tmp_path) -> Coordinator:
    made = Coordinator.create(tmp_path / "federation", settings_of())
    for node, name in enumerate(NAMES, start=1):
        made.members.admit(name, node)
    return made


def update(coordinator, name, by=0.1, weight=1.0) -> Update:
    shared = coordinator.server.shared
    return Update(name, {n: Entry(v + by, weight) for n, v in shared.items()})


class Given(SiloRunner):
    """Silos whose answers are given."""

    def __init__(self, coordinator, asked) -> None:
        super().__init__(coordinator)
        self.asked = asked

    def connected(self):
        return {*self.coordinator.members.silos}

    def ask(self, stage, server, names):
        return Asked() if stage == "evaluate" else self.asked


class Counted(Given):
    """Silos whose updates all count, whatever is in them."""

    def members(self, step):
        return []

    def work(self, stage, server, names):
        return Work(self.asked, {}, 0)


def done(coordinator, *names, **changes):
    own = {n: update(coordinator, n, by) for by, n in enumerate(names or NAMES, start=1)}
    replies = {n: Reply(coordinator.server.round, u, {"data": 1.0}) for n, u in own.items()}
    runner = Given(coordinator, Asked(**{"replies": replies, **changes}))
    return next(coordinator.rounds(runner).steps())


def count(coordinator, updates):
    """The shared part after a round in which these updates count."""
    next(coordinator.rounds(Counted(coordinator, updates)).steps())
    return coordinator.server.shared


def why_refused(coordinator, name, round, update):
    runner, step = Given(coordinator, Asked()), coordinator.next_step
    asked = Asked({name: Reply(round, update)})
    return runner._judged(step.stages[0], coordinator.server, asked)[1].get(name)


def log_of(coordinator, event):
    return [line for line in events(coordinator.folder) if line["event"] == event]


# ---- settings ------------------------------------------------------------------------------

CLASSES = {"classes": ["well", "ill"]}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({}, "classes are []; expected two or more"),
        ({"classes": ["a", "a"]}, "expected two or more"),
        ({"task": "regression"}, "range is missing"),
        ({"task": "regression", "range": [1, 1]}, "range is missing or empty"),
        ({"task": "regression", "range": [0, 1], **CLASSES}, "classes are set"),
        ({**CLASSES, "range": [0, 1]}, "range is set"),
        ({**CLASSES, "method": "fedavg"}, 'method: got "fedavg"; expected a method that'),
        ({**CLASSES, "method": "nonsense"}, "may run between machines, such as flic-class, fl"),
        ({**CLASSES, "method": "fedhenn"}, "max_features is 0"),
        ({**CLASSES, "salt": "no hex"}, "salt"),
        ({**CLASSES, "quorum": 0}, "quorum: got 0"),
        ({**CLASSES, "rouds": 3}, "rouds: unknown key; expected one of task"),
        ({**CLASSES, "network": {"training": {"rounds": 3}}}, "training.rounds is set here"),
        ({**CLASSES, "network": {"training": {"average": "mean"}}}, "training.average is set here"),
        ({**CLASSES, "network": {"training": {"x": 3}}}, "network.training.x: unknown key"),
        (
            {**CLASSES, "network": {"training": {"batch_size": "32"}}},
            'network.training.batch_size: got "32"; expected a whole number',
        ),
        ({**CLASSES, "network": {"training": {"normalise": "literal"}}}, "expected 'active'"),
        ({**CLASSES, "network": {"alignment": {"realign_epochs": 1}}}, "realign_epochs is set"),
        ({**CLASSES, "network": {"embedding": {"frozen": True}}}, "embedding.frozen is true"),
        ({**CLASSES, "network": {"anchors": {"meta_classes": 2}}}, "meta_classes is a number"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(raw, reason):
    with pytest.raises(ConfigError) as refused:
        federation_settings(raw, source="federation.json")
    assert reason in str(refused.value)


@pytest.mark.parametrize("method", BETWEEN_MACHINES)
def test_only_stages_of_linked_columns_send_sums(method):
    settings = settings_of(method=method, max_features=4)
    assert settings.sends_sums == (method == "linked")
    stages = settings.coordinated_method().stages.values()
    assert settings.sends_sums == any(stage.sums for stage in stages)


def test_the_rules_reach_the_networks():
    training = settings_of(rounds=9, participation=0.5, weights="rows").method_settings.training
    assert (training.rounds, training.participation, training.client_weight) == (9, 0.5, "rows")


def test_settings_that_cannot_start_leave_no_folder_behind(tmp_path):
    settings = settings_of(network={"anchors": {"meta_classes": [0, 0, 1]}})
    with pytest.raises(ConfigError, match="lists 3 meta-classes"):
        Coordinator.create(tmp_path / "federation", settings)
    assert not (tmp_path / "federation" / "federation.json").exists()


# ---- the folder ----------------------------------------------------------------------------


def test_a_folder_opens_as_it_was_made(coordinator):
    opened = Coordinator.open(coordinator.folder)
    assert (opened.run, opened.settings) == (coordinator.run, coordinator.settings)
    assert opened.members.silos == {"east": 1, "north": 2, "south": 3}
    assert opened.next_step.round == 1
    with pytest.raises(RunFolderError, match="holds a federation already"):
        Coordinator.create(coordinator.folder, settings_of())


def test_a_folder_without_a_federation_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="holds no federation"):
        Coordinator.open(tmp_path)


def test_rounds_of_another_federation_are_not_gone_on_with(coordinator, tmp_path):
    done(coordinator)
    other = Coordinator.create(tmp_path / "other", settings_of())
    shutil.copytree(coordinator.folder / "checkpoints", other.folder / "checkpoints")
    changed = f'the run has now (run: "{coordinator.run}" became "{other.run}")'
    with pytest.raises(OtherRun, match=re.escape(changed)):
        _ = Coordinator.open(other.folder).server


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_tensors_are_refused_whatever_the_checksums_say(coordinator, change):
    done(coordinator)
    sealed(coordinator.folder, "server", change)
    with pytest.raises(Damaged, match="expected it as flic wrote it"):
        _ = Coordinator.open(coordinator.folder).server


def test_rules_of_rounds_may_change_while_a_federation_goes_on(coordinator):
    done(coordinator)
    easier = coordinator.settings.model_copy(update={"quorum": 1, "deadline_s": 5.0})
    assert Coordinator(coordinator.folder, coordinator.run, easier).server.round == 2


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"run": 1, "settings": {}}'])
def test_a_damaged_federation_is_refused(coordinator, content):
    (coordinator.folder / "federation.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"federation\.json is damaged"):
        Coordinator.open(coordinator.folder)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"east": 3}', b'{"east": {"node": "x"}}'])
def test_a_damaged_list_of_silos_is_refused(coordinator, content):
    (coordinator.folder / "silos.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"silos\.json is damaged"):
        _ = coordinator.members.silos


def test_two_silos_do_not_have_one_key(coordinator):
    with pytest.raises(ConfigError, match="'west' has the key of silo 'east'"):
        coordinator.members.admit("west", 1)
    coordinator.members.admit("east", 9)
    assert coordinator.members.silos["east"] == 9


# ---- a round -------------------------------------------------------------------------------


def test_a_finished_round_is_the_algorithm_s_and_is_kept(coordinator):
    server = coordinator.server
    updates = [update(coordinator, name, by) for by, name in enumerate(NAMES, start=1)]
    expected = coordinator.rules.method.aggregate(server, updates).shared
    record = done(coordinator, absent={"west": "not connected"})
    opened = Coordinator.open(coordinator.folder)
    assert opened.server.round == 2
    for name, value in opened.server.shared.items():
        assert torch.equal(value, expected[name])
    assert opened.journal.records == [record]
    [line] = log_of(coordinator, "round")
    assert (line["active"], line["absent"]) == (NAMES, {"west": "not connected"})
    assert line["bytes"] == dict.fromkeys(NAMES, 2 * (4 * 8 + 8) + 8)
    status = opened.status()
    assert (status["rounds_done"], status["rounds"], status["done"]) == (1, 4, False)
    assert status["silos"]["east"]["last_round"] == 1


def test_the_order_of_answers_does_not_matter(tmp_path):
    found = []
    for order in ([0, 1, 2], [0, 2, 1]):
        made = Coordinator.create(tmp_path / str(order), settings_of())
        # Sums of these depend on their order.
        answers = [update(made, *own) for own in zip(NAMES, (1e17, -1e17, 3.0), strict=True)]
        found.append(count(made, [answers[i] for i in order]))
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_a_damaged_checkpoint_costs_one_round(coordinator):
    done(coordinator)
    before = coordinator.server.shared
    done(coordinator)
    path = coordinator.folder / "checkpoints" / "00001.server.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    opened = Coordinator.open(coordinator.folder)
    assert opened.server.round == 2
    assert all(torch.equal(value, before[name]) for name, value in opened.server.shared.items())


def test_a_line_torn_in_two_is_passed_over(coordinator):
    done(coordinator)
    with (coordinator.folder / LOG).open("ab") as file:
        file.write(b'{"event": "rou')
    assert coordinator.status()["rounds_done"] == 1


@pytest.mark.parametrize(
    ("name", "round", "changes", "reason"),
    [
        ("east", 1, {}, None),
        ("west", 1, {}, "is not admitted"),
        ("east", 0, {}, "is of round 0; expected one of round 1"),
        ("east", 2, {}, "is of round 2; expected one of round 1"),
        ("east", 1, {"weight": 2.0}, "expected equal weights"),
        ("east", 1, {"weight": 0.0}, "expected equal weights"),
        ("east", 1, {"by": float("inf")}, "NaN or infinite"),
        ("east", 1, {"by": torch.zeros(1, 8)}, "expected float32[8]"),
        ("east", 1, {"by": torch.zeros(8, dtype=torch.float64)}, "is float64[8]"),
    ],
)
def test_what_an_update_must_be(coordinator, name, round, changes, reason):
    why = why_refused(coordinator, name, round, update(coordinator, name, **changes))
    assert why is None if reason is None else reason in why


@pytest.mark.parametrize(
    ("sizes", "out"),
    [
        ({"east": 1.0, "north": 1.1, "south": 0.9}, []),
        ({"east": 1e9, "north": 1.1, "south": 0.9}, ["east"]),
        ({"east": 1e9, "north": 1.0}, ["east"]),
        ({"east": 1e9}, ["east"]),
        ({"east": 0.0, "north": 1.0}, ["east"]),
        ({"east": 1.01, "north": 1.0}, []),
        ({"east": 1.05, "north": 1.0, "south": 1.001}, ["east"]),
        ({"east": 1.4, "north": 1.2, "south": 1.1}, []),
        ({"east": 1e9, "north": 1e9, "south": 1.0}, ["east", "north"]),
        ({}, []),
    ],
    ids=str,
)
def test_an_update_out_of_proportion_is_found(coordinator, sizes, out):
    assert outliers(coordinator, sizes) == out


def outliers(coordinator, sizes):
    """Silos that are named where each sends so many times the shared part."""
    shared = coordinator.server.shared
    replies = {
        name: Reply(1, Update(name, {n: Entry(v * size, 1.0) for n, v in shared.items()}))
        for name, size in sizes.items()
    }
    return sorted(coordinator.rules.outliers(coordinator.server, replies))


@pytest.mark.parametrize(("size", "out"), [(1.12, []), (1.5, ["east"])])
def test_where_work_is_in_epochs_a_silo_of_many_rows_may_move_further(tmp_path, size, out):
    """0.12 is what one of 20,000 rows did beside others of 40 and 200."""
    epochs = {"training": {"local": "2 epochs", "shared": "1 epochs"}}
    made = Coordinator.create(tmp_path / "federation", settings_of(network=epochs))
    assert outliers(made, {"east": size, "north": 1.0003, "south": 1.0001}) == out


def test_what_silos_have_inflated_is_no_measure(coordinator):
    """However large the shared part has become, a silo may not move it by as much."""
    shared = {name: 1e6 * value for name, value in coordinator.server.shared.items()}
    coordinator.journal.commit(
        replace(coordinator.server, shared=shared), {"stage": "update", "round": 1}
    )
    assert outliers(coordinator, {"east": 1.5, "north": 1.5, "south": 1.0}) == ["east", "north"]


@pytest.mark.parametrize(
    ("average", "silos", "is_moved"),
    [("auto", 5, False), ("auto", 4, True), ("trimmed", 3, False), ("mean", 5, True)],
)
def test_a_silo_that_lies_within_the_bounds_moves_nothing_where_extremes_are_left_out(
    tmp_path, average, silos, is_moved
):
    made = Coordinator.create(tmp_path / "federation", settings_of(average=average))
    moves = {"liar": 1.0} | {f"honest-{i}": 0.001 * i for i in range(1, silos)}
    before, updates = made.server.shared, [update(made, *own) for own in moves.items()]
    for name, value in count(made, updates).items():
        assert bool(((value - before[name]) > 0.01).all()) == is_moved


def test_offences_outlive_the_coordinator(coordinator):
    for _ in range(2):
        done(coordinator, "north", "south", refused={"east": "it holds NaN."})
    opened = Coordinator.open(coordinator.folder)
    assert not opened.members.is_suspended("east")
    assert opened.members.last_refusal("east") == "it holds NaN."
    done(opened, "east", "north", "south")
    assert opened.members.last_refusal("east") is None
    opened.members.admit("west", 4)
    done(opened, replies={}, refused={"east": "again."})
    assert opened.members.is_suspended("east")
    assert sorted(opened.members.welcome()) == ["north", "south", "west"]
    assert "suspended" in opened.members.why_not("east")


@pytest.mark.process
def test_coordinator_and_silo_do_without_flower():
    """They and the package itself can be used where Flower is not installed."""
    code = "import sys; sys.modules['flwr'] = None; import flic.flower.runner, flic.flower.visits"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_log_says_who_is_waited_for(coordinator):
    coordinator.wait_for(["south", "east"])
    assert log_of(coordinator, "waiting")[0]["silos"] == ["east", "south"]

"""Every finding, on hand-made data that have this problem and no other."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.inspect import inspect, refuse_unusable
from flic.data.schema import FeatureSchema
from flic.data.task import Classification, Regression
from flic.errors import DataError, SchemaMismatch

HEALTHY_X = ((1.0, 5.0), (2.0, 3.0), (3.0, 9.0), (4.0, 4.0))


def make_split(x: Sequence[Sequence[float]], y: Sequence[int]) -> Split:
    return Split(torch.tensor(x).view(len(x), -1), torch.tensor(y, dtype=torch.int64))


def make_client(**changes) -> ClientData:
    """Healthy client 'ward-7' of two features and two classes, with the given changes."""
    split = make_split(HEALTHY_X, (0, 0, 1, 1))
    schema = FeatureSchema("hospital", ("age", "bmi"))
    healthy = ClientData("ward-7", schema, split, Split.empty(2), split)
    return replace(healthy, **changes)


def federate(*clients: ClientData) -> FederatedData:
    return FederatedData("wards", Classification(3), clients)


def only_finding(client: ClientData, *, fatal: bool) -> str:
    """The message of the one finding there is."""
    [finding] = inspect(federate(client))
    assert (finding.client, finding.fatal) == ("ward-7", fatal)
    assert finding.message.startswith("Client 'ward-7' ")
    return finding.message


def test_healthy_data_have_no_findings():
    assert refuse_unusable(federate(make_client())) == []


def test_no_clients():
    [finding] = inspect(federate())
    assert finding.fatal
    assert finding.message == "Data 'wards' has no clients; expected at least one. Add a client."


def test_one_name_twice():
    [finding] = inspect(federate(make_client(), make_client(), make_client(name="other")))
    assert finding.fatal
    assert "'ward-7' is used more than once" in finding.message


def test_no_training_rows():
    client = make_client(train=Split.empty(2), test=Split.empty(2))
    untested, untrained = (finding.message for finding in inspect(federate(client)))
    assert "has test rows; expected some" in untested
    assert "has no training rows; expected two classes" in untrained


def test_no_features():
    rows = Split(torch.empty(4, 0), torch.tensor([0, 1, 0, 1]))
    bare = FeatureSchema("hospital", ())
    found = inspect(federate(make_client(train=rows, test=rows, schema=bare)))
    assert any("has no features" in finding.message for finding in found if finding.fatal)


@pytest.mark.parametrize(
    ("x", "y", "got"),
    [
        ([[1.0]], torch.tensor([0]), "a list as x"),
        (torch.ones(3), torch.zeros(3).long(), r"shape \[3\] and type torch.float32 as x"),
        (torch.ones(3, 1), torch.zeros(3).int(), "type torch.int32 as y"),
    ],
)
def test_rows_of_another_kind_are_refused(x, y, got):
    with pytest.raises(SchemaMismatch, match=got):
        Split(x, y)


def test_one_training_row():
    row = make_split([(1.0, 2.0)], [0])
    message = only_finding(make_client(train=row, test=row), fatal=True)
    assert "has one training row; expected two classes" in message


def test_one_class():
    rows = make_split(HEALTHY_X, (2, 2, 2, 2))
    message = only_finding(make_client(train=rows, test=rows), fatal=True)
    assert "has training rows of class 2 only; expected at least two classes" in message


@pytest.mark.parametrize(
    ("which", "name"), [("train", "training"), ("validation", "validation"), ("test", "test")]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(which, name, bad):
    rows = make_split([(1.0, bad), (2.0, 3.0), (3.0, bad), (4.0, 4.0)], (0, 0, 1, 1))
    message = only_finding(make_client(**{which: rows}), fatal=True)
    assert f"has 2 NaN or infinite values in its {name} rows, in 'bmi';" in message


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_classes(label):
    rows = make_split(HEALTHY_X, (0, 0, label, label))
    message = only_finding(
        make_client(train=rows, test=make_client().test.take(torch.arange(2))), fatal=True
    )
    assert f"has training labels {label}; expected 0 to 2." in message


def test_columns_that_the_schema_does_not_declare():
    schema = FeatureSchema("hospital", ("age", "bmi", "smoker"))
    findings = inspect(federate(make_client(schema=schema, validation=Split.empty(3))))
    assert [finding.fatal for finding in findings] == [True, True]
    for finding, which in zip(findings, ("training", "test"), strict=True):
        assert f"has 2 columns in its {which} rows; expected 3" in finding.message


@pytest.mark.parametrize("which", ["validation", "test"])
def test_classes_without_training_rows(which):
    rows = make_split(HEALTHY_X, (0, 1, 2, 2))
    message = only_finding(make_client(**{which: rows}), fatal=True)
    assert f"has {which} rows of classes it has no training row of: 2;" in message
    assert "expected only 0, 1." in message


def test_one_feature_name_twice():
    schema = FeatureSchema("hospital", ("age", "age"))
    message = only_finding(make_client(schema=schema), fatal=True)
    assert "declares more than once: 'age'" in message


def test_rows_without_labels():
    rows = make_split(HEALTHY_X, (0, 1, 1))
    message = only_finding(make_client(test=rows), fatal=True)
    assert "has 4 test rows and 3 labels" in message


def test_notice_of_a_class_with_one_row():
    rows = make_split(HEALTHY_X, (0, 1, 1, 1))
    message = only_finding(make_client(train=rows), fatal=False)
    assert "has a single training row of class 0;" in message


def test_notice_of_constant_features():
    rows = make_split([(1.0, 7.0), (2.0, 7.0), (3.0, 7.0), (4.0, 7.0)], (0, 0, 1, 1))
    message = only_finding(make_client(train=rows), fatal=False)
    assert "has 1 feature of one value in all training rows: 'bmi'." in message


def test_notice_of_duplicate_features():
    rows = make_split([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)], (0, 0, 1, 1))
    message = only_finding(make_client(train=rows), fatal=False)
    assert "has 1 feature equal to an earlier one in all training rows: 'bmi'." in message


def test_long_lists_are_cut_short():
    x = [[float(row)] + [0.0] * 13 for row in range(4)]
    schema = FeatureSchema("hospital", tuple("abcdefghijklmn"))
    rows = make_split(x, (0, 0, 1, 1))
    client = make_client(schema=schema, train=rows, validation=Split.empty(14), test=rows)
    message = only_finding(client, fatal=False)
    assert "has 13 features of one value in all training rows: " in message
    assert "'h', 'i', 'j', 'k' and 3 more." in message


def test_notices_are_returned_and_do_not_refuse():
    rows = make_split(HEALTHY_X, (0, 1, 1, 1))
    [notice] = refuse_unusable(federate(make_client(train=rows)))
    assert not notice.fatal


def test_all_fatal_findings_are_refused_at_once_without_the_notices():
    lonely = make_client(name="ward-8", train=Split.empty(2), test=Split.empty(2))
    broken = make_split([(1.0, float("nan")), (1.0, 2.0), (1.0, 3.0)], (0, 1, 9))
    data = federate(make_client(train=broken), lonely, lonely)
    with pytest.raises(DataError) as refusal:
        refuse_unusable(data)
    heading, *lines = str(refusal.value).splitlines()
    assert heading == "Data 'wards' cannot be used; problems: 5."
    assert [line.split("'")[1] for line in lines] == [
        "ward-8",
        "ward-7",
        "ward-7",
        "ward-8",
        "ward-8",
    ]
    assert "one value" not in str(refusal.value)


def respond(client: ClientData, **responses: Sequence[float]) -> FederatedData:
    """The client with responses (of training and test rows) within a range of 0 to 10."""
    for which in ("train", "test"):
        y = torch.tensor(responses.get(which, (1.0, 2.0, 4.0, 9.0)))
        client = replace(client, **{which: Split(torch.tensor(HEALTHY_X)[: len(y)], y)})
    return FederatedData("wards", Regression(0.0, 10.0), (client,))


def test_healthy_responses_have_no_findings():
    assert inspect(respond(make_client())) == []


@pytest.mark.parametrize(
    ("responses", "fatal", "message"),
    [
        ({"train": (3.0,)}, True, "has one training row; expected two with different responses"),
        ({"train": (3.0, 3.0, 3.0)}, True, "has the same response, 3, in all training rows"),
        ({"train": (1.0, float("nan"))}, True, "has 1 NaN or infinite response in its training"),
        ({"test": (1.0, float("inf"))}, True, "has 1 NaN or infinite response in its test rows"),
        ({"train": (1.0, 25.0)}, True, "outside the declared range 0 to 10, between 1 and 25;"),
        ({"train": (1.0, 12.0)}, False, "has 1 training response outside the declared range"),
        ({"train": (-2.0, 8.0)}, False, "between -2 and 8. flic keeps such"),
    ],
)
def test_findings_about_responses(responses, fatal, message):
    [finding] = inspect(respond(make_client(), **responses))
    assert finding.fatal == fatal
    assert message in finding.message


def test_a_client_without_r2_is_told_of():
    one, two = (respond(make_client(name=n)).clients[0] for n in ("ward-7", "ward-8"))
    one = replace(one, test=Split(one.test.x[:2], torch.tensor([4.0, 4.0])))
    [finding] = inspect(FederatedData("wards", Regression(0.0, 10.0), (one, two)))
    assert "has the same response, 4, in all test rows" in finding.message
    assert not finding.fatal


def test_a_federation_without_r2_is_refused():
    with pytest.raises(DataError, match=r"No client of 'wards' has test rows with different"):
        refuse_unusable(respond(make_client(), test=(4.0, 4.0)))


def test_labels_of_the_other_task():
    classes = FederatedData("wards", Regression(0.0, 10.0), (make_client(),))
    numbers = replace(respond(make_client()), task=Classification(3))
    for data, got in ((classes, "torch.int64; expected float"), (numbers, "float32; expected int")):
        with pytest.raises(DataError, match=got) as refusal:
            refuse_unusable(data)
        assert f"since the task is {data.task.name}. Convert" in str(refusal.value)

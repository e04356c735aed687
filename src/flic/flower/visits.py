"""Visits to a silo: it trains, adds to sums and measures on its own rows, in its own folder."""

from collections.abc import Sequence
from dataclasses import replace

from flic.data.client_data import ClientData
from flic.engine.engine import EVALUATE
from flic.errors import FederationError
from flic.files import alone_in
from flic.flower.answers import digest_of_request
from flic.flower.federation_settings import FederationSettings
from flic.flower.pooling import FIRST, LAST, SUMS
from flic.flower.secure.contribution import figures_to_add, is_masked
from flic.flower.secure.statements import SumAnswer, SumRequest
from flic.flower.secure_training import out_of_proportion
from flic.flower.silo_engine import HeldOut, SiloEngine, VisitResult
from flic.flower.silo_figures import figures_told
from flic.flower.silo_folder import SiloFolder
from flic.flower.silo_run import SiloRun
from flic.flower.sum_visit import SumVisit, as_peer, refuse_made_up_sums
from flic.flower.sums_history import Told
from flic.methods.linked.linked import UPLOAD
from flic.methods.protocol import ServerState, Update
from flic.notation import counted
from flic.shapes import Named


def train(
    silo: SiloFolder,
    server: ServerState,
    settings: FederationSettings,
    stage: str = "update",
    *,
    run: str,
) -> VisitResult:
    """One visit from the silo's own state before the round; asked again, the same again."""
    _refuse_other_stage(silo, stage, settings)
    # A visit of a run that was killed may still be under way.
    with alone_in(silo.folder, patience_s=settings.deadline_s):
        own = silo.run(run, settings)
        if settings.sends_sums:
            _refuse_unmasked(silo, server.round, settings)
            return _prepare(silo, own, server)
        if is_masked(settings, stage, server.round):
            raise _without_masks(silo, "what it learnt", server.round)
        trained = _trained(silo, own, server, stage)
        return replace(trained, losses={}) if settings.masks_sums else trained


def _without_masks(silo: SiloFolder, what: str, round: int) -> FederationError:
    return FederationError(
        f"silo {silo.name!r} is asked for {what} without masks in round {round}; expected a secure "
        "sum. Give coordinator and silos one version of flic."
    )


def _trained(silo: SiloFolder, own: SiloRun, server: ServerState, stage: str) -> VisitResult:
    """A visit to the silo's network from its own state before the round, which is kept."""
    begun, engine = own.round_before(server.round), SiloEngine(own.client, own.settings)
    if begun is None:
        begun = server.round - 1
        own.save(begun, engine.prepared(server), server.shared)
    least = silo.min_rows(own.settings)
    trained, private = engine.train(stage, server, own.private(begun, engine), least)
    own.save(server.round, private, server.shared)
    own.keep({begun, server.round})
    return trained


def _to_be_masked(silo: SiloFolder, own: SiloRun, server: ServerState, stage: str) -> Update:
    """What a silo learnt, in proportion to what it was sent: behind masks nobody else can look."""
    update = _trained(silo, own, server, stage).update
    first = own.settings.coordinated_method().init_server().shared
    if wrong := out_of_proportion(update, server.shared, first, own.settings):
        raise FederationError(f"{wrong} Nothing was sent.")
    return update


def add_to_sum(
    silo: SiloFolder,
    asked: SumRequest,
    server: ServerState,
    settings: FederationSettings,
    *,
    run: str,
    holders: Sequence[int] = (),
    totals: str = "",
) -> tuple[SumAnswer, Named]:
    """One phase of a secure sum: what the silo says in it, and its masked numbers."""
    occasion, stage = asked.occasion, asked.occasion.stage
    if stage != EVALUATE:
        _refuse_other_stage(silo, stage, settings)
    is_other = (occasion.run, occasion.round) != (run, server.round)
    if is_other or not is_masked(settings, stage, server.round):
        raise FederationError(
            f"silo {silo.name!r} is asked for a secure sum of another run or round, or where "
            "there are none; expected this one. Give coordinator and silos one version of flic."
        )
    with alone_in(silo.folder, patience_s=settings.deadline_s):
        own = silo.run(run, settings)
        peer = as_peer(silo.folder, silo.name, min_holders=silo.min_holders(settings))
        visit = SumVisit(own, peer, silo.history, silo.min_rows(settings))
        linked: Sequence[int] = ()
        if settings.sends_sums and asked.phase == "advertise":
            linked = silo.linked_engine(own.client, settings).positions(server)

        def make() -> Update:
            if stage == EVALUATE:
                figures = _measure(silo, own, server, holders, totals)
                return figures_to_add(silo.name, figures, settings.common_task)
            if settings.sends_sums:
                return _prepare(silo, own, server, totals).update
            return _to_be_masked(silo, own, server, stage)

        return visit.answer(asked, server.shared, linked, make)


def evaluate(
    silo: SiloFolder,
    server: ServerState,
    settings: FederationSettings,
    *,
    run: str,
    holders: Sequence[int] = (),
    totals: str = "",
) -> dict[str, float]:
    """Figures of the silo's own held-out rows: sums, and none if they are of few rows or masked.

    A round's figures are told once; asked again with another shared part, they are refused.
    """
    with alone_in(silo.folder, patience_s=settings.deadline_s):
        own = silo.run(run, settings)
        if not is_masked(settings, EVALUATE, server.round):
            return _measure(silo, own, server, holders, totals)
        if not settings.sends_sums:
            raise _without_masks(silo, "figures", server.round)
        _measure(silo, own, server, holders, totals)  # for the model, which is the silo's own
        return {}


def _measure(
    silo: SiloFolder, own: SiloRun, server: ServerState, holders: Sequence[int], totals: str
) -> dict[str, float]:
    if own.settings.sends_sums:
        return _linked_figures(silo, own, server, holders, totals)
    begun = own.round_before(server.round + 1)
    if begun is None:
        raise FederationError(
            f"silo {silo.name!r} is asked for figures and has not trained yet; expected a "
            "round first. It will have figures after its first one."
        )
    return _figures(silo, own, server, begun)


def _figures(silo: SiloFolder, own: SiloRun, server: ServerState, begun: int) -> dict[str, float]:
    """Figures of the network after a round."""
    engine, answers = SiloEngine(own.client, own.settings), own.answers
    step = _measured(server)
    engine.refuse_other_shared(server)
    request = digest_of_request(server, step)
    answers.refuse_another(step, request)
    figures = answers.figures(step, request)
    if figures is None:
        answers.keep(step, request)  # before the work, as of sums
        told = silo.history.told_in(own.folder.name)
        is_told = told is not None and _are_told(silo, own, told)
        figures = (
            _rounded(silo, own, engine.held_out(server, own.private(begun, engine)))
            if is_told
            else {}
        )
        answers.keep(step, request, figures=figures)
    return figures


def _are_told(silo: SiloFolder, own: SiloRun, told: Told) -> bool:
    """Return whether figures leave: of enough rows, and not of almost an earlier run's."""
    least = silo.min_rows(own.settings)
    is_almost = silo.history.are_almost_held_out(told, own.folder.name, least=least)
    return len(own.client.test) >= least and not is_almost


def _rounded(silo: SiloFolder, own: SiloRun, held_out: HeldOut) -> dict[str, float]:
    least, key = silo.min_rows(own.settings), silo.history.rounding_key
    return figures_told(own.settings.common_task, *held_out, least=least, key=key)


# ---- linked columns ----------------------------------------------------------------------


def _prepare(silo: SiloFolder, own: SiloRun, server: ServerState, totals: str = "") -> VisitResult:
    """Keys, sums or likelihoods of linked columns."""
    engine = silo.linked_engine(own.client, own.settings)
    step, request = f"{UPLOAD} {server.round}", engine.request(server)
    positions = engine.positions(server)
    _refuse_made_up(own, server, positions, totals)
    told = _told(silo, own, step, request, positions)
    # Before the work: that it fails is an answer too, and may depend on a single row.
    own.answers.keep(step, request, linked=positions if server.round == SUMS else None)
    if server.round > FIRST:  # keys are of no row
        silo.history.keep(told, run=own.folder.name)
    return engine.prepare(own.with_kept(server))


def _linked_figures(
    silo: SiloFolder, own: SiloRun, server: ServerState, holders: Sequence[int], totals: str
) -> dict[str, float]:
    """Figures after the last round of linked columns; the model is kept."""
    _refuse_unfinished(silo, server.round)
    _refuse_other_holders(silo, own.client, holders)
    engine = silo.linked_engine(own.client, own.settings)
    step, request = _measured(server), engine.request(server)
    positions = engine.positions(server)
    _refuse_made_up(own, server, positions, totals)
    told = _told(silo, own, step, request, positions)
    own.answers.keep(step, request)  # before the work, as of sums
    server = own.with_kept(server)
    own.save_linked(engine.linked_client(server), holders)
    return _rounded(silo, own, engine.held_out(server)) if _are_told(silo, own, told) else {}


def _told(
    silo: SiloFolder, own: SiloRun, step: str, request: str, positions: Sequence[int]
) -> Told:
    """Rows that a run tells of, unless that would show some beside earlier answers."""
    answers, history, run = own.answers, silo.history, own.folder.name
    answers.refuse_out_of_turn(step, request, begins_anew=not own.settings.masks_sums)
    answers.refuse_other_links(positions)
    beginnings = answers.beginnings(step, request)
    history.refuse_too_many(run, beginnings, most=silo.file.max_runs)
    told = history.told_in(run)
    if told is None:
        told = history.rows_of(own.linked_names, own.client)
        history.refuse_almost_the_same(told, run, least=silo.min_rows(own.settings))
    elif not answers.are_of_sums or not history.are_of(told, own.client):
        raise FederationError(
            f"silo {silo.name!r} told sums in run {run}, whose folder in runs/ was removed or "
            "changed since; expected it as it was. Begin a new run."
        )
    return replace(told, beginnings=beginnings)


# ---- refusals ----------------------------------------------------------------------------


def _refuse_other_stage(silo: SiloFolder, stage: str, settings: FederationSettings) -> None:
    """Refuse a stage that the method does not have, before any work."""
    steps = settings.programme(rounds=1)
    expected = [*dict.fromkeys(own.name for step in steps for own in step.stages)]
    if stage not in expected:
        raise FederationError(
            f"silo {silo.name!r} is asked for the stage {stage!r} of method "
            f"{settings.method!r}; expected {' or '.join(expected)}. Give coordinator and "
            "silos one version of flic."
        )


def _refuse_unmasked(silo: SiloFolder, round: int, settings: FederationSettings) -> None:
    """Refuse to tell sums as they are unless the silo was shown that there are no masks."""
    if round == FIRST:  # keys are of no row
        return
    if settings.masks_sums or not silo.was_shown:
        raise FederationError(
            f"silo {silo.name!r} is asked for sums without masks; expected a secure sum. If "
            "the federation was made with --no-secure-sums and you agree to that, make the "
            "silo with its --federation."
        )
    if settings.min_holders < silo.file.min_holders:
        raise FederationError(
            f"silo {silo.name!r} is asked for sums of columns that {settings.min_holders} "
            f"silos have; expected {silo.file.min_holders} (min_holders): with two, each "
            "could subtract its own sums from the total and read the other's. If you agree to "
            "that, lower min_holders in silo.toml."
        )


def _refuse_made_up(
    own: SiloRun, server: ServerState, positions: Sequence[int], totals: str
) -> None:
    """Refuse pooled sums that no secure sum gave: they would choose what an answer shows."""
    if own.settings.masks_sums:
        keys = [own.client.schema.features[i] for i in positions]
        refuse_made_up_sums(own, server, keys, totals)


def _refuse_unfinished(silo: SiloFolder, round: int) -> None:
    if round != LAST:
        raise FederationError(
            f"silo {silo.name!r} is asked for figures in round {round - FIRST + 1} of "
            f"{LAST - FIRST + 1}; expected to be asked after the last, when there is a model. "
            "Give coordinator and silos one version of flic."
        )


def _refuse_other_holders(silo: SiloFolder, client: ClientData, holders: Sequence[int]) -> None:
    if len(holders) != client.schema.dim or min(holders) < 1:
        raise FederationError(
            f"silo {silo.name!r} is sent {counted(len(holders), 'count')} of who has its "
            f"{counted(client.schema.dim, 'feature')}; expected one for each. Give coordinator "
            "and silos one version of flic."
        )


def _measured(server: ServerState) -> str:
    return f"{EVALUATE} {server.round}"

"""A silo as a Flower app: it does what it is asked with its own rows, and answers with numbers.

Node config: `silo`, the silo's folder. Every message is answered in a process of its own, which is
forked from one that has imported all this already (`ops.executor`).
"""

import time
from collections.abc import Callable
from logging import getLogger
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from flic.engine.engine import EVALUATE
from flic.errors import FlicError
from flic.flower import visits
from flic.flower.log import note
from flic.flower.messages import Reply, Request, pack_reply, read_request
from flic.flower.secure.statements import (
    DoubtedPeers,
    FalseTotals,
    SumAnswer,
    SumRequest,
    read_statement,
)
from flic.flower.silo_folder import SiloFolder
from flic.methods.protocol import Entry, Update

app = ClientApp()

log = getLogger("flwr")

FAILED = 2
"""Flower's code for a client app that could not answer."""

REASON = "no answer; the silo's own log says why"
"""The same for every failure: of which kind it is may depend on rows."""

LONGEST = 500
"""Most characters of the coordinator's own words that are kept, or it could fill the disk."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """One visit: private parameters stay, the update and loss terms leave."""
    return _answer(message, context, lambda silo: _train(silo, read_request(message.content)))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Figures of the silo's own held-out rows."""
    return _answer(message, context, lambda silo: _evaluate(silo, read_request(message.content)))


def _train(silo: SiloFolder, request: Request) -> Reply:
    started = time.perf_counter()
    if request.refused is not None:
        note(silo.folder, "refused", round=request.server.round, message=request.refused[:LONGEST])
    if request.statement:
        return _add_to_sum(silo, request)
    server = request.server
    trained = visits.train(silo, server, request.settings, request.stage, run=request.run)
    note(
        silo.folder,
        "trained",
        stage=request.stage,
        round=server.round,
        losses=dict(trained.losses),
        left=sorted(trained.update.entries),
        seconds=time.perf_counter() - started,
    )
    return Reply(server.round, trained.update, trained.losses, trained.keys)


def _add_to_sum(silo: SiloFolder, request: Request) -> Reply:
    """One phase of a secure sum; only the last of five shows anything to anybody."""
    asked = read_statement(SumRequest, request.statement, who="a request")
    try:
        answer, masked = visits.add_to_sum(
            silo,
            asked,
            request.server,
            request.settings,
            run=request.run,
            holders=request.holders,
            totals=request.totals,
        )
    except DoubtedPeers as error:
        return _refusal(silo, request, error, SumAnswer(doubted=error.names))
    except FalseTotals as error:
        return _refusal(silo, request, error, SumAnswer(false_totals=error.round))
    done = "evaluated" if asked.occasion.stage == EVALUATE else "trained"
    note(
        silo.folder,
        done if asked.phase == "unmask" else asked.phase,
        stage=asked.occasion.stage,
        round=asked.occasion.round,
        members=asked.members or asked.occasion.invited,
    )
    update = Update(silo.name, {name: Entry(value, 1.0) for name, value in masked.items()})
    said = answer.model_dump_json(exclude_defaults=True)
    return Reply(request.server.round, update, statement=said)


def _refusal(silo: SiloFolder, request: Request, error: Exception, answer: SumAnswer) -> Reply:
    """A reason why a silo is in no sum that rests on no row, so that it may be said."""
    note(silo.folder, "failed", message=str(error))
    said = answer.model_dump_json(exclude_defaults=True)
    return Reply(request.server.round, Update(silo.name, {}), statement=said)


def _evaluate(silo: SiloFolder, request: Request) -> Reply:
    if request.statement:
        return _add_to_sum(silo, request)
    figures = visits.evaluate(
        silo,
        request.server,
        request.settings,
        run=request.run,
        holders=request.holders,
        totals=request.totals,
    )
    note(silo.folder, "evaluated", round=request.server.round, figures=figures)
    return Reply(request.server.round, Update(silo.name, {}), figures)


def _answer(message: Message, context: Context, work: Callable[[SiloFolder], Reply]) -> Message:
    """The answer, or that there is none: why it failed may quote rows, and stays at home."""
    silo = None
    try:
        silo = SiloFolder.open(Path(str(context.node_config["silo"])))
        return Message(pack_reply(work(silo)), reply_to=message)
    except Exception as error:
        log.error("%s", error, exc_info=not isinstance(error, FlicError))
        if silo is not None:
            note(silo.folder, "failed", message=str(error))
        return Message(Error(FAILED, REASON), reply_to=message)

"""What models are: defined, pinned, held, reset, removed."""

from __future__ import annotations

from moorage.core import events as ev
from moorage.core.decide.ends import cancel, stop, stopping
from moorage.core.decide.requests import leaving, resolve
from moorage.core.draft import Draft
from moorage.core.lifecycle import Stage
from moorage.core.state import Model, Run
from moorage.errors import NameClashError
from moorage.spec import ModelSpec


def define(draft: Draft, spec: ModelSpec, secrets_hash: str) -> bool:
    """Define or redefine a model; the same spec again changes nothing (returns False)."""
    state = draft.state
    old = state.models.get(spec.name)
    for name in spec.names:
        owner = state.names.get(name, spec.name)
        if owner != spec.name:
            raise NameClashError(name, owner)
    if old is not None and leaving(draft, old.name):
        raise NameClashError(spec.name, f"{spec.name} (being removed)")
    data = spec.to_data()
    if old is not None and old.secrets_hash == secrets_hash:
        known = old.spec.to_data() | {"secret_names": list(old.secret_names)}
        if known == data:
            return False
    defined = draft.emit(
        ev.ModelDefined(
            model=spec.name,
            spec=data,
            spec_hash=spec.launch_hash(),
            secrets_hash=secrets_hash,
        )
    )
    _pin_as_told(draft, spec, old, defined)
    return True


def _pin_as_told(draft: Draft, spec: ModelSpec, old: Model | None, cause: int) -> None:
    was = old.spec.pinned if old is not None else False
    if spec.pinned != was:
        event = ev.ModelPinned if spec.pinned else ev.ModelUnpinned
        draft.emit(event(model=spec.name), cause)


def outdated(draft: Draft, model: Model, old: Model | None) -> list[Run]:
    """Return the runs that were made from a spec the model no longer has."""
    if old is None:
        return []
    runs = [draft.state.runs[run] for run in (model.run, model.next_run) if run is not None]
    secrets = old.secrets_hash != model.secrets_hash
    return [
        run
        for run in runs
        # What queues without fetched files takes the spec it finds when it reserves.
        if not (run.stage is Stage.QUEUED and run.path is None)
        and (secrets or run.spec_hash != model.spec_hash)
    ]


def pin(draft: Draft, name: str, *, pinned: bool) -> bool:
    """Pin or unpin; a pin loads nothing."""
    model = resolve(draft, name)
    if model.pinned == pinned:
        return False
    event = ev.ModelPinned if pinned else ev.ModelUnpinned
    draft.emit(event(model=model.name))
    return True


def reset(draft: Draft, name: str, reason: str) -> bool:
    """Forget hold, backoff, failure and the count of attempts."""
    model = resolve(draft, name)
    if model.status == "stopped" and not model.attempts and model.last is None:
        return False
    draft.emit(ev.ModelReset(model=model.name, reason=reason))
    return True


def hold(draft: Draft, name: str, reason: str) -> bool:
    """Refuse leases of a model from now on."""
    model = resolve(draft, name)
    if model.status == "held":
        return False
    draft.emit(ev.ModelHeld(model=model.name, reason=reason))
    return True


def remove(draft: Draft, name: str, *, force: bool, leases: int) -> int | None:
    """Take a model away; return the run that has to end first, None when it is gone at once."""
    model = resolve(draft, name)
    if model.next_run is not None:
        cancel(draft, model.next_run, "remove")
    if model.run is not None and not stop(draft, model.run, "remove", force=force, leases=leases):
        run = draft.state.runs[model.run]  # it is being stopped already, for another reason
        stopping(draft, run, "remove", stage=run.fail_stage, error=run.error)
    if model.name in draft.state.models and draft.state.models[model.name].run is None:
        draft.emit(ev.ModelRemoved(model=model.name, reason="operator"))
    return model.run if model.name in draft.state.models else None

"""The intent tables held, one per source, and what they make of models and endpoints. Level-triggered: the newest
table is the truth.

An omitted endpoint becomes absent: it gets nothing new, finishes what it has and is then dropped. An endpoint whose
address or model changed is another replica under the same id: the old object finishes apart from the table, a new one
starts with unknown health. A source that says nothing expires nothing. A model that was removed while requests were
in flight is kept in `former`, so that it is the same object when it comes back and its slots are still counted.
"""

from __future__ import annotations

from collections.abc import Callable

from router.core.endpoints import ABSENT, Endpoint
from router.core.models import Model
from router.errors import BadTable, StaleTable, TableMismatch
from router.model import EndpointAck, EndpointIntent, IntentTable, ModelIntent, TableAck


class Tables:
    """`held`: tables by source · `models` by name · `names`: names and aliases -> Model · `endpoints` by id, absent
    ones included.
    """

    __slots__ = ("_random", "_removed", "endpoints", "former", "held", "models", "names")

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self.held: dict[str, IntentTable] = {}
        self.models: dict[str, Model] = {}
        self.names: dict[str, Model] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.former: dict[str, Model] = {}
        self._removed: list[Model] = []

    def apply(self, table: IntentTable, now: float) -> bool:
        """True when it changed something to look at. Raises `StaleTable`, `TableMismatch` or `BadTable`; then nothing
        was changed.
        """
        if not self._is_newer(table):
            return False
        self._check_owners(table)
        self._tell_models(table, now)
        told = {intent.id: intent for intent in table.endpoints}
        for endpoint in list(self.endpoints.values()):
            if endpoint.source == table.source and endpoint.id not in told:
                self._retire(endpoint)
        for intent in table.endpoints:
            self._tell_endpoint(table, intent)
        self.held[table.source] = table  # last: held means that all of it is applied
        return True

    def acknowledgement(self, source: str) -> TableAck:
        """State of one source's endpoints. Raises `KeyError` for an unknown source."""
        table = self.held[source]
        return TableAck(
            applied=(table.epoch, table.revision),
            endpoints={
                endpoint.id: EndpointAck(in_flight=endpoint.in_flight, drained=endpoint.drained, health=endpoint.health)
                for endpoint in self.endpoints.values()
                if endpoint.source == source
            },
        )

    def take_removed(self) -> list[Model]:
        """Models that the last table removed."""
        removed, self._removed = self._removed, []
        return removed

    def drop_if_gone(self, endpoint: Endpoint) -> None:
        """Forget an absent endpoint that has nothing in flight any more."""
        if endpoint.intent == ABSENT and not endpoint.in_flight:
            if self.endpoints.get(endpoint.id) is endpoint:
                del self.endpoints[endpoint.id]
            for model in (self.models.get(endpoint.model), self.former.get(endpoint.model)):
                if model is not None:
                    model.endpoints.pop(endpoint, None)

    def _is_newer(self, table: IntentTable) -> bool:
        held = self.held.get(table.source)
        if held is None:
            return True
        new, old = (table.epoch, table.revision), (held.epoch, held.revision)
        if new < old:
            raise StaleTable(old)
        if new > old:
            return True
        if table != held:
            raise TableMismatch(f"epoch {new[0]} revision {new[1]} of {table.source!r} is held with another body")
        return False

    def _check_owners(self, table: IntentTable) -> None:
        """A model name and an endpoint id belong to one source."""
        for model in table.models:
            for name in (model.name, *model.aliases):
                owner = self.names.get(name)
                if owner is not None and owner.source != table.source:
                    raise BadTable(f"the model name {name!r} belongs to the source {owner.source!r}")
        for intent in table.endpoints:
            endpoint = self.endpoints.get(intent.id)
            if endpoint is not None and endpoint.source != table.source and endpoint.intent != ABSENT:
                raise BadTable(f"the endpoint id {intent.id!r} belongs to the source {endpoint.source!r}")

    def _tell_models(self, table: IntentTable, now: float) -> None:
        for name in [name for name, model in self.names.items() if model.source == table.source]:
            del self.names[name]
        kept = {intent.name for intent in table.models}
        for model in list(self.models.values()):
            if model.source == table.source and model.name not in kept:
                self._removed.append(self.models.pop(model.name))
        self.former = {model.name: model for model in (*self.former.values(), *self._removed) if model.in_flight}
        for intent in table.models:
            self._tell_model(intent, table.source, now)

    def _tell_model(self, intent: ModelIntent, source: str, now: float) -> None:
        model = self.models.get(intent.name)
        if model is None:
            model = self.former.pop(intent.name, None) or Model(intent, source, self._random, now)
            self.models[intent.name] = model
        model.tell(intent, source, now)
        for name in (intent.name, *intent.aliases):
            self.names[name] = model

    def _tell_endpoint(self, table: IntentTable, intent: EndpointIntent) -> None:
        model = self.names[intent.model]
        endpoint = self.endpoints.get(intent.id)
        if endpoint is not None:
            if endpoint.url == intent.url and endpoint.model == model.name and endpoint.source == table.source:
                endpoint.tell(intent, table.share)
                model.endpoints[endpoint] = None
                return
            self._retire(endpoint)
        endpoint = Endpoint(intent, table.source, model.name, table.share)
        self.endpoints[intent.id] = endpoint
        model.endpoints[endpoint] = None

    def _retire(self, endpoint: Endpoint) -> None:
        endpoint.intent = ABSENT
        endpoint.settle()
        self.drop_if_gone(endpoint)

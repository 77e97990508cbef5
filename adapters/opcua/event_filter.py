"""Which events a client wants: the library's filter, with types that know their supertypes."""

from typing import Any

from asyncua import ua
from asyncua.server.monitored_item_service import MonitoredItemService, WhereClauseEvaluator

_SUBTYPE = ua.NodeId(ua.ObjectIds.HasSubtype)
_DEEPEST = 32


class TypedWhere(WhereClauseEvaluator):  # type: ignore[misc]  # untyped library
    """Takes an event of a subtype for one of its type, as the standard says.

    The library compares types for equality: who asks for conditions would never hear of alarms.
    """

    def _eval_el(self, index: int, event: Any) -> Any:  # noqa: ANN401
        element = self.elements[index]
        if element.FilterOperator == ua.FilterOperator.OfType:
            wanted = self._eval_op(element.FilterOperands[0], event)
            return self._is_a(event.EventType, wanted)
        return super()._eval_el(index, event)

    def _is_a(self, kind: ua.NodeId, wanted: ua.NodeId) -> bool:
        for _ in range(_DEEPEST):
            if kind == wanted:
                return True
            above = [
                reference.NodeId
                for reference in self._aspace[kind].references
                if reference.ReferenceTypeId == _SUBTYPE and not reference.IsForward
            ]
            if not above:
                return False
            kind = above[0]
        return False


def know_supertypes(service: MonitoredItemService) -> None:
    """Give every event item of a subscription the filter above."""
    for item in service._monitored_items.values():
        given = item.where_clause_evaluator
        if given is not None and not isinstance(given, TypedWhere):
            item.where_clause_evaluator = TypedWhere(
                service.logger, service.aspace, item.filter.WhereClause
            )

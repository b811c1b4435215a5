"""Which tuned values an item uses: those without which one of its experiments would be another one."""

from dataclasses import replace
from typing import Any

from spherefed.reproduce.catalog import ITEMS
from spherefed.reproduce.item import Item
from spherefed.reproduce.regimes import ROUNDS
from spherefed.reproduce.scales import Scale
from spherefed.reproduce.tuned import tuned_methods


def used_tuning(item: Item, scale: Scale) -> dict[str, Any]:
    """Method → how many values were tried and which was chosen, of the methods whose value the item's cells use."""
    found = tuned_methods(scale.name.removesuffix("-balanced"))
    return {
        method: {"tried": len(entry["tried"]), "chosen": entry["chosen"], "judged_by": entry["judged_by"]}
        for method, entry in found.items()
        if ITEMS[item.name](_with_another_value(scale, method, *entry["chosen"])).cells != item.cells
    }


def _with_another_value(scale: Scale, method: str, path: str) -> Scale:
    """The scale with twice the value that was chosen for this method."""
    if method in scale.personal:
        return replace(scale, personal={**scale.personal, method: {path: 2 * scale.personal[method][path]}})
    if path == "local.lr":
        return replace(scale, rates={**scale.rates, method: 2 * scale.rates[method]})
    if path == "loss.scale":
        return replace(scale, temperature=2 * scale.temperature)
    # Both refits that were tried, with and without Tukey's transform, stand behind the better one.
    on_sphere, more_rounds = "+spherefed" in method, method.endswith(ROUNDS)
    name = "ccvr_on_sphere" if on_sphere else "ccvr_more_rounds" if more_rounds else "ccvr_tuned"
    ccvr = getattr(scale, name)
    return replace(scale, **{name: replace(ccvr, refit=replace(ccvr.refit, lr=2 * ccvr.refit.lr))})

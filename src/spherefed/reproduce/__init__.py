"""Every table and figure of the paper by its number: which experiments, the paper's numbers, how to judge, the page.

In the order in which `spherefed reproduce table2` passes through them (`cli/reproduce.py`):

- `catalog`: the item by its name. An `Item` (`item`) is a value: cells, each with an experiment and the paper's number,
  and claims. `accuracy_tables`, `ablations`, `personal`, `figures`, `feature_maps`, `regimes` and `formulas` build them
  from a `Scale` (`scales`, with what `tuned/` holds) and the rows that tables share (`methods`);
- `campaign`: runs what is missing and adds one record per experiment and seed to the `Store` (`store`);
- `summary`: from records to the JSON of the item, with verdicts (`judging`), likely causes (`causes`) and the tuning
  that its cells use (`used_tuning`);
- `writing`: this JSON, and from it alone the page (`page`), the figure (`chart`) and the overviews (`headline`).

`rates` is the search for learning rates behind `spherefed reproduce tuning`; its results are copied to `tuned/`.
"""

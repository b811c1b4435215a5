"""Every table and figure of the paper by its number: which experiments, the paper's numbers, how to judge, the page."""

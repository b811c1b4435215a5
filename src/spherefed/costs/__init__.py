"""What methods cost by formula: Table 1's traffic and operations of the classifier, Fig. 5's accelerator."""

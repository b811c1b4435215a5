"""What methods cost by formula: Table 1's traffic and operations of the classifier."""

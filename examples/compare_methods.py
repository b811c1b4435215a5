"""Your own network and arrays: two methods compared over two seeds, as a table and a figure."""
import torch
from sklearn.datasets import load_wine
import spherefed as sf

X, y = load_wine(return_X_y=True)
X = (X - X.mean(axis=0)) / X.std(axis=0)
net = torch.nn.Sequential(torch.nn.Linear(13, 32), torch.nn.ReLU())
start = sf.recipe("digits", rounds=5, partition={"alpha": 0.3, "clients": 5})
tuned = {"fedavg": {"local.lr": 0.03}, "fedavg+spherefed": {"local.lr": 1.0}}  # from sf.tune
comparison = sf.compare(start, list(tuned), seeds=2, tuned=tuned, data=(X, y), encoder=net, progress=False)
print(comparison.frame()[["method", "seed", "accuracy", "balanced_accuracy", "macro_f1"]])
comparison.plot().savefig("wine.svg")

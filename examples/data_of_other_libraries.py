"""The same digits as a torch Dataset, a pandas frame and a Hugging Face dataset: equal models."""

import datasets
import pandas
import torch
from sklearn.datasets import load_digits

import spherefed as sf

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")


class Digits(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(y)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        return {"pixels": torch.from_numpy(X[index]), "digit": int(y[index])}


experiment = sf.recipe("digits", rounds=1, local={"epochs": 1})
forms = {
    "arrays": {"data": (X, y)},
    "torch Dataset": {"data": Digits(), "image_key": "pixels", "label_key": "digit"},
    "pandas frame": {"data": pandas.DataFrame(X).assign(digit=y), "label_key": "digit"},
    "Hugging Face dataset": {"data": datasets.Dataset.from_dict({"image": X, "label": y}).with_format("numpy")},
}
results = {name: sf.run(experiment, progress=False, **inputs) for name, inputs in forms.items()}
for name, result in results.items():
    print(f"{name}: {result.accuracy:.2%}, weights {result.summary['weights_sha256'][:12]}")

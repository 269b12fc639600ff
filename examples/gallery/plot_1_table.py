"""
A table: probabilities, and the rows behind them
================================================

Fit breast cancer, look at one uncertain prediction, and see what learned attention looked at.
"""

# %%
# Fit
# ---
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier

data = load_breast_cancer(as_frame=True)
X, y = data.data, data.target.map(dict(enumerate(data.target_names)))
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
model = AttnKNNClassifier(preset="instant", random_state=0).fit(X_train, y_train)
proba = model.predict_proba(X_test)
print(f"accuracy {model.score(X_test, y_test):.3f}, NLL {log_loss(y_test, proba):.3f}")

# %%
# Why
# ---
# The least certain row, and its neighbors: each with its label, its share of the attention, and the
# probability of "malignant" without it.
row = int(proba.max(axis=1).argmin())
(why,) = model.explain(X_test.iloc[[row]], n_neighbors=8)
malignant = list(model.classes_).index("malignant")
print(f"malignant {proba[row, malignant]:.2f}, in truth {y_test.iloc[row]}")

fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
names = [f"row {one.id}: {one.label}" for one in why.neighbors]
without = [one.proba_without[malignant] for one in why.neighbors]
ax.axvline(proba[row, malignant], color="0.6")
ax.scatter(without, names, s=[2000 * one.weight for one in why.neighbors], color="C0", alpha=0.7)
ax.invert_yaxis()
ax.set(xlabel='probability of "malignant" without the neighbor (size: its weight)')
plt.show()

# %%
# Abstain
# -------
# Hand the least certain tenth to a person.
chosen = model.predict_selective(X_test, coverage=0.9)
wrong = (chosen.labels != y_test.to_numpy())[chosen.accepted]
print(f"answered {chosen.accepted.mean():.0%}, of which {wrong.mean():.1%} are wrong")
print(f"wrong among the others: {np.mean((chosen.labels != y_test)[~chosen.accepted]):.0%}")

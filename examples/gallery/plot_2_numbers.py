"""
Numbers as targets: a distribution for each row
===============================================

Predict the progression of diabetes with intervals, and draw one predicted distribution beside the
remembered rows that it is made of.
"""

# %%
# Fit, and predict intervals
# --------------------------
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
model = AttnKNNRegressor(preset="instant", random_state=0).fit(X_train, y_train)
mean = model.predict(X_test)
low, high = model.predict_interval(X_test, confidence=0.9).T
inside = (low <= y_test) & (y_test <= high)
print(f"{inside.mean():.0%} of {len(y_test)} targets lie in their interval of 90 %")

order = np.argsort(mean)
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.fill_between(np.arange(len(mean)), low[order], high[order], alpha=0.3, label="interval of 90 %")
ax.plot(mean[order], label="mean")
ax.scatter(np.arange(len(mean)), y_test.iloc[order], s=8, color="0.2", label="target")
ax.set(xlabel="test rows, by the size of the prediction", ylabel="progression")
ax.legend()
plt.show()

# %%
# One distribution
# ----------------
# Each neighbor carries how far its own target lay from what the base predicted for it, left out.
# Moved to the base's prediction of this row and weighted by attention, these residuals make the
# distribution.
(why,) = model.explain(X_test.iloc[[0]], n_neighbors=6)
points = np.linspace(0, 400, 200)
cdf = model.predict_cdf(X_test.iloc[[0]], points[None])[0]
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(points, cdf, label="predicted distribution")
ax.axvline(y_test.iloc[0], color="0.2", label="target")
for one in why.neighbors:
    ax.plot(one.target, 0, "|", color="C1", markersize=400 * one.weight)
ax.set(xlabel="progression", ylabel="probability of at most it")
ax.legend()
plt.show()
print(why.to_frame()[["id", "target", "weight", "prediction_without"]].round(2))

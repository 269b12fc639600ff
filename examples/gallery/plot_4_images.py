"""
Images: answers, and the pictures behind them
=============================================

Handwritten digits of scikit-learn as images of 8 x 8 pixels. A small network is trained to embed
them, the neighbors are searched in its embedding.
"""

# %%
# Fit to arrays of images
# -----------------------
# Images are uint8 arrays of shape (n, height, width, channels), or a folder per class
# (:func:`nearwise.data.load_image_folder`).
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier

digits = load_digits()
images = (digits.images * (255 / 16)).astype(np.uint8)[..., None]
X_train, X_test, y_train, y_test = train_test_split(
    images, digits.target, train_size=1000, stratify=digits.target, random_state=0
)
model = AttnKNNClassifier(settings={"train": {"epochs": 8}}, random_state=0)
model.fit(X_train, y_train)
proba = model.predict_proba(X_test)
print(f"accuracy: {model.score(X_test, y_test):.3f}")

# %%
# Why was one answer wrong?
# -------------------------
# The digit whose true class is least probable, and the images that it was compared with.
hardest = proba[np.arange(len(y_test)), y_test].argmin()
why = model.explain(X_test[[hardest]], n_neighbors=6)[0]
fig, axes = plt.subplots(1, 7, figsize=(9, 1.8), layout="constrained")
axes[0].imshow(X_test[hardest, ..., 0], cmap="Greys")
axes[0].set_title(f"a {y_test[hardest]},\npredicted {why.label}", fontsize=9)
for ax, neighbor in zip(axes[1:], why.neighbors, strict=True):
    ax.imshow(X_train[neighbor.id, ..., 0], cmap="Greys")
    ax.set_title(f"{neighbor.label}: weight\n{neighbor.weight:.2f}", fontsize=9)
for ax in axes:
    ax.axis("off")
plt.show()

# %%
# Answer only where it can be trusted
# -----------------------------------
chosen = model.predict_selective(X_test, coverage=0.9)
right = chosen.labels == y_test
print(f"accepted {chosen.accepted.mean():.0%} of the images")
print(f"accuracy of these: {right[chosen.accepted].mean():.3f}")
print(f"accuracy of the others: {right[~chosen.accepted].mean():.3f}")

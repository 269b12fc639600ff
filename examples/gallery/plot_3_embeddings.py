"""
Embeddings: search, classify, and notice what is new
====================================================

Ready embeddings are rows of numbers. Here they are the principal components of handwritten digits;
those of a language or image model are used in the same way.
"""

# %%
# Fit to nine of ten digits
# -------------------------
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier

X, y = load_digits(return_X_y=True)
embeddings = PCA(32, random_state=0).fit_transform(X)
train, test = train_test_split(range(len(y)), stratify=y, random_state=0)
known = [at for at in train if y[at] != 9]
model = AttnKNNClassifier(preset="instant", random_state=0).fit(embeddings[known], y[known])

# %%
# What is new
# -----------
# The novelty score orders rows by how unlike the remembered ones they are. No nine was learned.
score = model.novelty_score(embeddings[test])
is_new = y[test] == 9
print(f"AUROC of unknown against known digits: {roc_auc_score(is_new, score):.3f}")

fig, axes = plt.subplots(1, 8, figsize=(8, 1.4), layout="constrained")
for ax, at in zip(axes, (-score).argsort()[:8], strict=True):
    ax.imshow(X[test][at].reshape(8, 8), cmap="Greys")
    ax.set_title(f"a {y[test][at]}", fontsize=9)
    ax.axis("off")
plt.show()

# %%
# Remember it
# -----------
# Twenty nines are added, and nothing is trained again.
nines = [at for at in train if y[at] == 9][:20]
model.add(embeddings[nines], y[nines])
found = model.predict(embeddings[test])[is_new]
print(f"nines recognized now: {(found == 9).mean():.0%}")

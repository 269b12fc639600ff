"""Write iris.csv: 150 flowers, four lengths and the species."""

from sklearn.datasets import load_iris

iris = load_iris(as_frame=True)
table = iris.data.rename(columns=lambda name: name.removesuffix(" (cm)"))
table.assign(species=iris.target_names[iris.target]).to_csv("iris.csv", index=False)

"""Names that distinguish a run of ``nearwise vit train`` from other folders."""

ARGS, MODEL = "args.txt", "model"

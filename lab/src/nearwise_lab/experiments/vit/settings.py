"""Settings of a vision transformer's run, by the names of the published command line."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearwise.training.settings import refuse_unknown
from nearwise_lab.nn.layers import token_layer

MODEL, ATTENTION, DATA, TRAINING, OUTPUT = (
    "Model",
    "Attention layer",
    "Data",
    "Training",
    "Device and output",
)
# Flags in the examples of the published README that its program never had.
NEVER_EXISTED = {
    "similarity_type": "magnitude_type (and coordinate_encoding, where places count)",
    "aggregation_type": "convolution_type (and softmax_topk_val, for the weights)",
}
# The published README's name; and what saved runs called a line before it had that name.
SAMPLING_ALIASES = {"spatial": "grid", "spatial-1d": "line"}
# What the published runs set otherwise than their command line's defaults do, and what their model
# and its training did that no flag covers.
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "published": {
        "num_heads": 1,
        "positions": "sincos",
        "patch_norm": True,
        "final_norm": False,
        "init": "torch",
        "sample_in_eval": True,
        "class_token": "local",
        "proj_bias": False,
        "lr": 1e-4,
        "weight_decay": 1e-2,
        "decay_all": True,
    },
}
# Settings of a run that do not change how a trained model is queried.
OF_DATA = ("dataset", "data_path", "train_limit", "test_limit")
HOW = ("device", "output_dir", "test_only", "checkpoint_every")


def _flag(default: Any, panel: str, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"panel": panel}, **bounds)


class VitSettings(BaseModel):
    """Everything that decides a run of `nearwise vit train`.

    Names and defaults are those of the published command line; what it has not comes after each
    group. With a `recipe` what is not given is as in `RECIPES`. Unknown settings raise an error
    that names the nearest known one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: Literal["default", "published"] = _flag(
        "default",
        MODEL,
        "Where settings that are not given come from: published is the model and the training of "
        "the published tables.",
    )
    patch_size: int = _flag(16, MODEL, "Side of a patch in pixels.", ge=1)
    num_layers: int = _flag(12, MODEL, "Layers of the encoder.", ge=1)
    num_heads: int = _flag(3, MODEL, "Attention heads; must divide d_hidden.", ge=1)
    d_hidden: int = _flag(192, MODEL, "Width of a token.", ge=1)
    d_mlp: int = _flag(768, MODEL, "Width between the linear layers of the MLP.", ge=1)
    dropout: float = _flag(0.1, MODEL, "Dropout of linear layers.", ge=0, lt=1)
    attention_dropout: float = _flag(0.1, MODEL, "Dropout of attention.", ge=0, lt=1)
    drop_path: float = _flag(
        0.0, MODEL, "Stochastic depth of the last layer; rises to it from 0.", ge=0, lt=1
    )
    pooling: Literal["token", "mean"] = _flag(
        "token", MODEL, "What is classified: the class token, or the mean of the patches."
    )
    class_token: Literal["global", "local"] = _flag(
        "global",
        MODEL,
        "KNNAttention, ConvNNAttention, NeighborhoodAttention: whether class token and registers "
        "are neighbors of every token and candidates in every draw, or the first tokens of the "
        "line and no more.",
    )
    positions: Literal["learned", "sincos", "sincos-2d", "none"] = _flag(
        "learned", MODEL, "How positions of tokens are encoded."
    )
    num_registers: int = _flag(0, MODEL, "Learned tokens beside the class token.", ge=0)
    patch_norm: bool = _flag(False, MODEL, "LayerNorm where patches become tokens.")
    final_norm: bool = _flag(True, MODEL, "LayerNorm before the tokens are pooled.")
    init: Literal["truncated-normal", "torch"] = _flag(
        "truncated-normal", MODEL, "First weights: of deviation 0.02, or torch's own."
    )

    layer: str = _flag(
        "Attention",
        ATTENTION,
        "Attention, ConvNNAttention, KvtAttention, LocalAttention, NeighborhoodAttention, "
        "BranchConv, BranchAttention, KNNAttention, NeighborhoodAttention2D, SparseAttention or "
        "TokenConvolution.",
    )
    convolution_type: Literal["standard", "depthwise", "depthwise-separable"] = _flag(
        "depthwise", ATTENTION, "ConvNN: how the ranks of neighbors are mixed."
    )
    softmax_topk_val: bool = _flag(True, ATTENTION, "ConvNN: softmax over the top-K scores.")
    K: int = _flag(9, ATTENTION, "Neighbors, or the kernel size of NeighborhoodAttention.", ge=1)
    sampling_type: Literal["all", "random", "line", "grid", "spatial"] = _flag(
        "all",
        ATTENTION,
        "Which tokens may be neighbors: all, some at random, evenly along the sequence, or an even "
        "grid of them; spatial is the published name of grid.",
    )
    num_samples: int = _flag(
        -1, ATTENTION, "Candidates (random, line) or side of the grid; -1 = all."
    )
    sample_padding: int = _flag(0, ATTENTION, "Tokens left out at each edge; line, grid.", ge=0)
    magnitude_type: Literal["matmul", "cosine", "euclidean"] = _flag(
        "matmul", ATTENTION, "How near two tokens are."
    )
    coordinate_encoding: bool = _flag(
        False, ATTENTION, "ConvNN: use positions of tokens when neighbors are chosen."
    )
    kernel_size: int = _flag(
        9, ATTENTION, "BranchConv: kernel size of the convolution along tokens.", ge=1
    )
    branch_ratio: float = _flag(
        0.5, ATTENTION, "BranchConv, BranchAttention: share of channels for ConvNN.", ge=0, le=1
    )
    sample_in_eval: bool = _flag(
        False, ATTENTION, "Draw random candidates in evaluations too, as the published code did."
    )
    proj_bias: bool = _flag(True, ATTENTION, "Bias of the layer's output projection.")
    window_size: int = _flag(128, ATTENTION, "LocalAttention: tokens to each side.", ge=1)
    sparse_mode: Literal["all", "local", "strided"] = _flag(
        "local", ATTENTION, "SparseAttention: its pattern."
    )
    sparse_context_window: int = _flag(32, ATTENTION, "SparseAttention: its width.", ge=1)
    include_self: Literal["candidate", "always", "never"] = _flag(
        "candidate", ATTENTION, "KNNAttention: whether a token is its own neighbor."
    )
    learned_temperature: bool = _flag(
        False, ATTENTION, "KNNAttention: learn a temperature for each head."
    )
    null_neighbor: bool = _flag(
        False, ATTENTION, "KNNAttention: a neighbor that is always there and carries nothing."
    )

    dataset: str = _flag(
        "cifar10", DATA, "cifar10, cifar100, imagenet, mnist, digits, or a folder of class folders."
    )
    data_path: str = _flag(
        "./Data",
        DATA,
        "Folder of the data sets. Where it is not there: NEARWISE_DATA, the cache, a download.",
    )
    resize: int = _flag(224, DATA, "Side that images are resized to; 0 keeps their size.", ge=0)
    augment: bool = _flag(False, DATA, "Random crops and, except for digits, mirroring.")
    noise: float = _flag(0.0, DATA, "Standard deviation of Gaussian noise on the data.", ge=0)
    noise_on: Literal["train", "test", "both"] = _flag("train", DATA, "Which images get noise.")
    color_jitter: float = _flag(
        0.0, DATA, "Largest change of brightness, contrast and saturation.", ge=0, le=1
    )
    rotation: float = _flag(0.0, DATA, "Largest rotation in degrees.", ge=0, le=180)
    cutout: int = _flag(0, DATA, "Side of a square that is blotted out, in pixels.", ge=0)
    mixup: float = _flag(0.0, DATA, "MixUp's alpha; 0 switches it off.", ge=0)
    validation: float | None = _flag(
        None,
        DATA,
        "Share of the training images kept for choosing the epoch and the plateau; default 0.1 "
        "with scheduler plateau, else 0: the last epoch counts.",
        ge=0,
        lt=1,
    )
    train_limit: int | None = _flag(None, DATA, "Only the first training images.", ge=2)
    test_limit: int | None = _flag(None, DATA, "Only the first test images.", ge=1)

    batch_size: int = _flag(256, TRAINING, "Images per step.", ge=1)
    num_epochs: int = _flag(150, TRAINING, "Passes over the training images.", ge=1)
    use_amp: bool = _flag(False, TRAINING, "Mixed precision.")
    amp_type: Literal["bfloat16", "float16"] = _flag(
        "bfloat16", TRAINING, "Number type of use_amp."
    )
    use_compiled: bool = _flag(False, TRAINING, "Compile the model with torch.compile.")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = _flag(
        "default", TRAINING, "Mode of torch.compile."
    )
    clip_grad_norm: float = _flag(
        1.0, TRAINING, "Largest norm of the gradient; 0 does not limit it.", ge=0
    )
    criterion: Literal["CrossEntropy", "MSE"] = _flag("CrossEntropy", TRAINING, "The loss.")
    label_smoothing: float = _flag(0.0, TRAINING, "Share spread over classes.", ge=0, lt=1)
    optimizer: Literal["adam", "sgd", "adamw"] = _flag("adamw", TRAINING, "The optimizer.")
    lr: float = _flag(1e-3, TRAINING, "Learning rate.", gt=0)
    weight_decay: float = _flag(1e-6, TRAINING, "Weight decay of matrices; see decay_all.", ge=0)
    decay_all: bool = _flag(False, TRAINING, "Decay biases and norms too.")
    momentum: float = _flag(0.9, TRAINING, "Momentum of sgd.", ge=0, lt=1)
    scheduler: Literal["step", "cosine", "plateau", "none"] = _flag(
        "none", TRAINING, "How the learning rate falls."
    )
    lr_step: int = _flag(20, TRAINING, "Epochs between steps of scheduler step.", ge=1)
    lr_gamma: float = _flag(0.1, TRAINING, "Factor of scheduler step and plateau.", gt=0, le=1)
    plateau_patience: int = _flag(
        10, TRAINING, "Epochs without progress before plateau lowers the rate.", ge=0
    )
    warmup_epochs: float = _flag(0.0, TRAINING, "Epochs of linear warm-up.", ge=0)
    ema: float = _flag(
        0.0, TRAINING, "Decay of a moving average of the weights; 0: none.", ge=0, lt=1
    )
    evaluate_every: int = _flag(1, TRAINING, "Epochs between evaluations.", ge=1)

    device: Literal["auto", "cpu", "cuda", "mps"] = _flag(
        "auto", OUTPUT, "auto: a GPU if there is one."
    )
    seed: int = _flag(0, OUTPUT, "Decides weights, batches, augmentation and dropout.", ge=0)
    output_dir: str | None = _flag(
        None, OUTPUT, "Folder for everything written; default runs/vit/LAYER-DATASET-SEED."
    )
    test_only: bool = _flag(False, OUTPUT, "Only evaluate the model in output_dir.")
    checkpoint_every: int = _flag(1, OUTPUT, "Epochs between checkpoints.", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _hint_at_unknown(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for wrong, right in NEVER_EXISTED.items():
            if wrong in values:
                raise ValueError(f"There is no setting {wrong!r}: it is {right}.")
        given = refuse_unknown(values, cls, "vit")
        if (kind := given.get("sampling_type")) in SAMPLING_ALIASES:
            given = {**given, "sampling_type": SAMPLING_ALIASES[kind]}
        return {**RECIPES.get(str(given.get("recipe")), {}), **given}

    @model_validator(mode="after")
    def _check(self) -> "VitSettings":
        token_layer(self.layer)
        if self.num_samples == 0 or self.num_samples < -1:
            raise ValueError(f"num_samples={self.num_samples} must be positive, or -1 for all.")
        if self.scheduler == "plateau" and self.validation == 0:
            raise ValueError(
                "scheduler='plateau' needs validation images, and validation=0 keeps none. Give "
                "a share, such as 0.1."
            )
        return self

    @property
    def layer_name(self) -> str:
        """Name of the layer's class, without aliases."""
        return str(getattr(token_layer(self.layer), "__name__", self.layer))

    @property
    def validation_share(self) -> float:
        """Share of the training images that is kept for choices."""
        if self.validation is None:
            return 0.1 if self.scheduler == "plateau" else 0.0
        return self.validation

    @property
    def folder(self) -> str:
        """Folder of the run."""
        name = self.dataset.replace("/", "-").replace("\\", "-").strip("-.")
        return self.output_dir or f"runs/vit/{self.layer}-{name}-{self.seed}"

    def decides(self) -> dict[str, Any]:
        """Give the settings on which the result depends."""
        return self.model_dump(exclude=set(HOW))

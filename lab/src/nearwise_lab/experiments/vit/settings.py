"""Settings of a vision transformer's run, by the names of the published command line."""

from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearwise.functional.tokens.problem import IncludeSelf, TokenMetric
from nearwise.training.settings import Precision, refuse_unknown
from nearwise_lab.nn.convnn import Convolution
from nearwise_lab.nn.dense import SparseMode
from nearwise_lab.nn.layers import token_layer
from nearwise_lab.nn.vit import Init, Pooling, Positions
from nearwise_lab.training.runs import RunConfig

MODEL, ATTENTION, DATA = "Model", "Attention layer", "Data"  # panels of the help
TRAINING, OUTPUT = "Training", "Device and output"
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
        "num_heads": 1, "positions": "sincos", "patch_norm": True, "final_norm": False,
        "init": "torch", "sample_in_eval": True, "class_token": "local", "proj_bias": False,
        "lr": 1e-4, "weight_decay": 1e-2, "decay_all": True,
    },
}  # fmt: skip
# Settings of a run that do not change how a trained model is queried.
OF_DATA = ("dataset", "data_path", "train_limit", "test_limit")
HOW = ("device", "output_dir", "test_only", "checkpoint_every")


def _flag(panel: str, default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"panel": panel}, **bounds)


_model, _attention, _data, _training, _output = (
    partial(_flag, panel) for panel in (MODEL, ATTENTION, DATA, TRAINING, OUTPUT)
)


class VitSettings(BaseModel):
    """Settings of `nearwise vit train`.

    Names and defaults are those of the published command line; what it has not comes after each
    group. With a `recipe` what is not given is as in `RECIPES`. Unknown settings raise an error
    that names the nearest known one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: Literal["default", "published"] = _model(
        "default",
        "Settings that are not given; published: as in the published tables.",
    )
    patch_size: int = _model(16, "Side of a patch in pixels.", ge=1)
    num_layers: int = _model(12, "Layers of the encoder.", ge=1)
    num_heads: int = _model(3, "Attention heads; must divide d_hidden.", ge=1)
    d_hidden: int = _model(192, "Width of a token.", ge=1)
    d_mlp: int = _model(768, "Width between the linear layers of the MLP.", ge=1)
    dropout: float = _model(0.1, "Dropout of linear layers.", ge=0, lt=1)
    attention_dropout: float = _model(0.1, "Dropout of attention.", ge=0, lt=1)
    drop_path: float = _model(
        0.0, "Stochastic depth of the last layer, from 0 at the first.", ge=0, lt=1
    )
    pooling: Pooling = _model(
        "token", "Input of the classifier: the class token, or the mean of the patches."
    )
    class_token: Literal["global", "local"] = _model(
        "global",
        "KNNAttention, ConvNNAttention, NeighborhoodAttention: class token and registers. global: "
        "candidates for every token. local: ordinary tokens at the start of the sequence.",
    )
    positions: Positions = _model("learned", "Positional encoding of tokens.")
    num_registers: int = _model(0, "Learned tokens beside the class token.", ge=0)
    patch_norm: bool = _model(False, "LayerNorm in the patch embedding.")
    final_norm: bool = _model(True, "LayerNorm before the tokens are pooled.")
    init: Init = _model("truncated-normal", "Initial weights: deviation 0.02, or torch's default.")

    layer: str = _attention(
        "Attention",
        "Attention, ConvNNAttention, KvtAttention, LocalAttention, NeighborhoodAttention, "
        "BranchConv, BranchAttention, KNNAttention, NeighborhoodAttention2D, SparseAttention or "
        "TokenConvolution.",
    )
    convolution_type: Convolution = _attention(
        "depthwise", "ConvNN: convolution over the ranked neighbors."
    )
    softmax_topk_val: bool = _attention(True, "ConvNN: softmax over the top-K scores.")
    K: int = _attention(9, "Neighbors, or the kernel size of NeighborhoodAttention.", ge=1)
    sampling_type: Literal["all", "random", "line", "grid", "spatial"] = _attention(
        "all",
        "Candidate neighbors: all tokens, a random sample, evenly spaced ones (line), or an even "
        "grid. spatial is the published name of grid.",
    )
    num_samples: int = _attention(-1, "Candidates (random, line) or side of the grid; -1 = all.")
    sample_padding: int = _attention(0, "Tokens left out at each edge; line, grid.", ge=0)
    magnitude_type: TokenMetric = _attention("matmul", "Similarity or distance of two tokens.")
    coordinate_encoding: bool = _attention(False, "ConvNN: search with positions too.")
    kernel_size: int = _attention(9, "BranchConv: kernel of the convolution along tokens.", ge=1)
    branch_ratio: float = _attention(
        0.5, "BranchConv, BranchAttention: share of channels for ConvNN.", ge=0, le=1
    )
    sample_in_eval: bool = _attention(
        False, "Draw random candidates in evaluations too, as the published code did."
    )
    proj_bias: bool = _attention(True, "Bias of the layer's output projection.")
    window_size: int = _attention(128, "LocalAttention: tokens to each side.", ge=1)
    sparse_mode: SparseMode = _attention("local", "SparseAttention: its pattern.")
    sparse_context_window: int = _attention(32, "SparseAttention: its width.", ge=1)
    include_self: IncludeSelf = _attention(
        "candidate", "KNNAttention: whether a token may be its own neighbor."
    )
    learned_temperature: bool = _attention(False, "KNNAttention: a temperature per head.")
    null_neighbor: bool = _attention(False, "KNNAttention: add a learned null neighbor.")

    dataset: str = _data(
        "cifar10", "cifar10, cifar100, imagenet, mnist, digits, or a folder of class folders."
    )
    data_path: str = _data(
        "./Data",
        "Folder of the data sets. If it does not exist: NEARWISE_DATA, the cache, a download.",
    )
    resize: int = _data(224, "Side that images are resized to; 0 keeps their size.", ge=0)
    augment: bool = _data(False, "Random crops and, except for digits, mirroring.")
    noise: float = _data(0.0, "Standard deviation of Gaussian noise on the data.", ge=0)
    noise_on: Literal["train", "test", "both"] = _data("train", "Which images get noise.")
    color_jitter: float = _data(
        0.0, "Largest change of brightness, contrast and saturation.", ge=0, le=1
    )
    rotation: float = _data(0.0, "Largest rotation in degrees.", ge=0, le=180)
    cutout: int = _data(0, "Side of a masked square, in pixels.", ge=0)
    mixup: float = _data(0.0, "MixUp's alpha; 0 switches it off.", ge=0)
    validation: float | None = _data(
        None,
        "Share of training images held out to choose the epoch and detect plateaus. Default: 0.1 "
        "with scheduler plateau, else 0 (the last epoch).",
        ge=0,
        lt=1,
    )
    train_limit: int | None = _data(None, "Only the first training images.", ge=2)
    test_limit: int | None = _data(None, "Only the first test images.", ge=1)

    batch_size: int = _training(256, "Images per step.", ge=1)
    num_epochs: int = _training(150, "Passes over the training images.", ge=1)
    use_amp: bool = _training(False, "Mixed precision.")
    amp_type: Literal["bfloat16", "float16"] = _training("bfloat16", "Number type of use_amp.")
    use_compiled: bool = _training(False, "Compile the model with torch.compile.")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = _training(
        "default", "Mode of torch.compile."
    )
    clip_grad_norm: float = _training(1.0, "Maximum norm of the gradient; 0: no limit.", ge=0)
    criterion: Literal["CrossEntropy", "MSE"] = _training("CrossEntropy", "The loss.")
    label_smoothing: float = _training(0.0, "Label smoothing.", ge=0, lt=1)
    optimizer: Literal["adam", "sgd", "adamw"] = _training("adamw", "The optimizer.")
    lr: float = _training(1e-3, "Learning rate.", gt=0)
    weight_decay: float = _training(1e-6, "Weight decay of matrices; see decay_all.", ge=0)
    decay_all: bool = _training(False, "Decay biases and norms too.")
    momentum: float = _training(0.9, "Momentum of sgd.", ge=0, lt=1)
    scheduler: Literal["step", "cosine", "plateau", "none"] = _training(
        "none", "Learning-rate schedule."
    )
    lr_step: int = _training(20, "Epochs between steps of scheduler step.", ge=1)
    lr_gamma: float = _training(0.1, "Factor of scheduler step and plateau.", gt=0, le=1)
    plateau_patience: int = _training(10, "Patience of plateau, in epochs.", ge=0)
    warmup_epochs: float = _training(0.0, "Epochs of linear warm-up.", ge=0)
    ema: float = _training(0.0, "Decay of a moving average of the weights; 0: none.", ge=0, lt=1)
    evaluate_every: int = _training(1, "Epochs between evaluations.", ge=1)

    device: Literal["auto", "cpu", "cuda", "mps"] = _output("auto", "auto: a GPU if there is one.")
    seed: int = _output(0, "Random seed of weights, batches, augmentation and dropout.", ge=0)
    output_dir: str | None = _output(
        None, "Folder for everything written; default runs/vit/LAYER-DATASET-SEED."
    )
    test_only: bool = _output(False, "Only evaluate the model in output_dir.")
    checkpoint_every: int = _output(1, "Epochs between checkpoints.", ge=1)

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
        """Share of the training images that is held out for validation."""
        if self.validation is None:
            return 0.1 if self.scheduler == "plateau" else 0.0
        return self.validation

    @property
    def folder(self) -> str:
        """Folder of the run."""
        name = self.dataset.replace("/", "-").replace("\\", "-").strip("-.")
        return self.output_dir or f"runs/vit/{self.layer}-{name}-{self.seed}"

    @property
    def precision(self) -> Precision:
        """Number type of steps and evaluations."""
        return self.amp_type if self.use_amp else "float32"

    def noise_in(self, training: bool) -> float:
        """Return the deviation of the noise on training or on evaluation images."""
        return self.noise if self.noise_on in ("both", "train" if training else "test") else 0.0

    def engine(self) -> RunConfig:
        """Return the settings of the training loop; some have the same names there."""
        same = self.model_dump(include=set(RunConfig.model_fields))
        return RunConfig(
            **same,
            epochs=self.num_epochs,
            schedule="constant" if self.scheduler == "none" else self.scheduler,
            gradient_clip=self.clip_grad_norm or None,
            precision=self.precision,
            compile=self.use_compiled,
            ema_decay=self.ema or None,
        )

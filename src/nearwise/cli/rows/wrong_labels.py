"""The line that says how many labels were found to be wrong, and what was made of it."""

from nearwise.classifier import AttnKNNClassifier


def wrong_labels_line(model: AttnKNNClassifier) -> str:
    """Say the rate of a classifier that was fitted with `label_noise`, and what was decided."""
    note = model.choice_["label_noise"]
    low, high = note["interval"]
    rate = "not known" if note.get("taken") == 0 else f"{model.noise_rate_:.1%}"
    found = f" (95 % interval {low:.1%} to {high:.1%})" if low < high else ""
    if note.get("taken", 1) < 1:
        found = f" (between {low:.1%} and {high:.1%})"
    decided = f"; {note['decision']}" if "decision" in note else ""
    answered = f". Answers are the {note['answers']}" if "answers" in note else ""
    return f"Wrong labels: {rate}{found}{decided}{answered}."

"""Few-shot attention: episodes, their attention, and an estimator."""

from nearwise_lab.few_shot.attention import EpisodeAttention
from nearwise_lab.few_shot.episodes import Episode, draw_episodes
from nearwise_lab.few_shot.estimator import FewShotAttention

__all__ = ["Episode", "EpisodeAttention", "FewShotAttention", "draw_episodes"]

"""The package rouge-score, imported without scikit-learn and scipy.stats, which its dependency nltk imports."""

from tasks.later import later

with later("sklearn", "sklearn.feature_extraction", "sklearn.preprocessing", "scipy.stats"):
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

__all__ = ["DefaultTokenizer", "RougeScorer"]

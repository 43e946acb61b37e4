"""Sentiment of film reviews: IMDB (Maas et al. 2011), Rotten Tomatoes snippets."""

from tasks import lazy

__getattr__ = lazy("tasks.classification.run")

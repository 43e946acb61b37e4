"""Where data sets are obtained: local mirrors, the Hugging Face hub, apt, pip and web addresses."""

"""Official scores of predictions, whoever made them."""

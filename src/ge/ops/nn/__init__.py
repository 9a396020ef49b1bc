"""Neural networks: products, convolutions, pooling, attention, normalisation, recurrence, quantisation."""

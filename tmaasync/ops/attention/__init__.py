"""Attention: softmax of scaled scores, times values, head by head."""

"""Operations with a fast path: naive.py is the truth, fast.py must equal it in outputs and gradients."""

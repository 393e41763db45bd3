"""Float64 oracles, one operator a file. They share no code with any kernel, and are differentiable."""

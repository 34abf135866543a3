def peak_flops(kind): return None
def train_step_flops(*a): return 1.0

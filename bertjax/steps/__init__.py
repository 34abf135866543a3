"""Train and eval steps, compiled step functions, optimizers and schedules."""

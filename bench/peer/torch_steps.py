"""Times training steps in PyTorch, and says what the peers of step_bench print of them."""
import resource
import statistics
import time


def timed_steps(step, options, flops):
    """Calls step(), which returns the loss, options.warmup and then options.steps times. `flops` are those of one
    step of options.batch x options.seq tokens."""
    for _ in range(options.warmup):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    median = statistics.median(seconds)
    return {
        "step_ms": round(median * 1e3, 1),
        "min_ms": round(min(seconds) * 1e3, 1),
        "tokens_per_s": round(options.batch * options.seq / median, 1),
        "gflops": round(flops / median / 1e9, 1),
        "peak_rss_mib": usage.ru_maxrss // 1024,
        "loss": round(loss.item(), 4),
        "page_faults_per_step": round((usage.ru_minflt - faults) / options.steps, 1),
    }

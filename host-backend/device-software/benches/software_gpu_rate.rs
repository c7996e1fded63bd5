//! Thread-instructions per second and core on an arithmetic kernel. Goal: at least 1 G.

mod common;

fn main() {
    let rate = common::rate(1, 0, 5);
    println!(
        "software_gpu_rate {:.3} G thread-instructions/s on one core",
        rate / 1e9
    );
}

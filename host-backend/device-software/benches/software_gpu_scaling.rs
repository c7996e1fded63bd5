//! Two cores compared with one, alternating. Goal: at least 1.7.

mod common;

fn main() {
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| common::rate(2, 0, 2) / common::rate(1, 1, 2))
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "software_gpu_scaling {:.2} (median of {} pairs)",
        ratios[ratios.len() / 2],
        ratios.len()
    );
}

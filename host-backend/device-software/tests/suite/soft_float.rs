//! The exact arithmetic behind directed rounding and narrow formats, against the host's.

use paragpu_device_software::exec::soft::{
    Conversion, Format, From, Kind, Recipe, Rounding, f16_to_f32, f32_to_half,
};
use proptest::prelude::*;

fn recipe(kind: Kind, format: Format, mode: Rounding) -> Recipe {
    Recipe {
        kind,
        format,
        mode,
        ftz: false,
    }
}

fn same64(got: u64, want: f64) -> bool {
    f64::from_bits(got).to_bits() == want.to_bits() || f64::from_bits(got).is_nan() && want.is_nan()
}

fn same32(got: u64, want: f32) -> bool {
    got as u32 == want.to_bits() || f32::from_bits(got as u32).is_nan() && want.is_nan()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nearest_is_the_hosts_in_double(a in any::<u64>(), b in any::<u64>(), c in any::<u64>()) {
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        let run = |kind| recipe(kind, Format::F64, Rounding::Nearest).run(a, b, c);
        prop_assert!(same64(run(Kind::Add), x + y));
        prop_assert!(same64(run(Kind::Sub), x - y));
        prop_assert!(same64(run(Kind::Mul), x * y));
        prop_assert!(same64(run(Kind::Fma), x.mul_add(y, z)));
        prop_assert!(same64(run(Kind::Div), x / y));
        prop_assert!(same64(run(Kind::Rcp), 1.0 / x));
        prop_assert!(same64(run(Kind::Sqrt), x.sqrt()));
    }

    #[test]
    fn nearest_is_the_hosts_for_neighbours(a in any::<u64>(), near in -3i64..3, shift in 0u32..60, c in any::<u64>()) {
        // Operands with similar exponents cancel.
        let b = a.wrapping_add_signed(near << shift) ^ 1 << 63;
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        let run = |kind, b, c| recipe(kind, Format::F64, Rounding::Nearest).run(a, b, c);
        prop_assert!(same64(run(Kind::Add, b, 0), x + y));
        let product = -(x * z);
        prop_assert!(same64(run(Kind::Fma, c, product.to_bits()), x.mul_add(z, product)));
    }

    #[test]
    fn nearest_is_the_hosts_in_single(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
        let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        let run = |kind| recipe(kind, Format::F32, Rounding::Nearest).run(a.into(), b.into(), c.into());
        prop_assert!(same32(run(Kind::Add), x + y));
        prop_assert!(same32(run(Kind::Mul), x * y));
        prop_assert!(same32(run(Kind::Fma), x.mul_add(y, z)));
        prop_assert!(same32(run(Kind::Div), x / y));
        prop_assert!(same32(run(Kind::Sqrt), x.sqrt()));
    }

    #[test]
    fn directed_modes_bracket_the_exact_product(a in any::<u32>(), b in any::<u32>()) {
        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
        prop_assume!(x.is_finite() && y.is_finite());
        let exact = f64::from(x) * f64::from(y);
        let run = |mode| f32::from_bits(recipe(Kind::Mul, Format::F32, mode).run(a.into(), b.into(), 0) as u32);
        let (down, up, zero) = (run(Rounding::Down), run(Rounding::Up), run(Rounding::Zero));
        prop_assert!(f64::from(down) <= exact && exact <= f64::from(up));
        if f64::from(down) == exact {
            prop_assert_eq!(down, up);
        } else {
            prop_assert_eq!(down.next_up(), up);
        }
        prop_assert_eq!(zero, if exact < 0.0 { up } else { down });
    }

    #[test]
    fn directed_modes_bracket_the_exact_sum(a in -1e30f64..1e30, b in -1e30f64..1e30) {
        let run = |mode| f64::from_bits(recipe(Kind::Add, Format::F64, mode).run(a.to_bits(), b.to_bits(), 0));
        let (down, up) = (run(Rounding::Down), run(Rounding::Up));
        // The error of the rounded sum is itself a double.
        let sum = a + b;
        let t = sum - a;
        let error = (a - (sum - t)) + (b - t);
        match error.total_cmp(&0.0) {
            _ if error == 0.0 => prop_assert!(down == sum && up == sum),
            std::cmp::Ordering::Less => prop_assert!(down == sum.next_down() && up == sum),
            _ => prop_assert!(down == sum && up == sum.next_up()),
        }
    }

    #[test]
    fn conversions_are_the_hosts(a in any::<u64>(), n in any::<i64>()) {
        let to = |from, format, bits| Conversion { from, to: format, mode: Rounding::Nearest, ftz: false }.run(bits);
        prop_assert!(same32(to(From::F64, Format::F32, a), f64::from_bits(a) as f32));
        prop_assert!(same32(to(From::S64, Format::F32, n as u64), n as f32));
        prop_assert!(same64(to(From::U64, Format::F64, a), a as f64));
        prop_assert!(same64(to(From::S64, Format::F64, n as u64), n as f64));
    }

    #[test]
    fn a_value_becomes_the_nearest_half(v in -70000f32..70000.0) {
        let h = f32_to_half(Format::F16, v);
        let back = f16_to_f32(h);
        if back.is_finite() {
            let (below, above) = (f16_to_f32(if h & 0x7fff == 0 { 0x8001 } else { h - 1 }), f16_to_f32((h + 1) & 0xffff));
            for other in [below, above] {
                if other.is_finite() {
                    prop_assert!((v - back).abs() <= (v - other).abs());
                }
            }
        } else {
            prop_assert!(v.abs() >= 65520.0);
        }
    }
}

#[test]
fn every_half_survives_the_way_to_single_and_back() {
    for h in 0..=0xffffu32 {
        let v = f16_to_f32(h);
        if v.is_nan() {
            assert!(h & 0x7c00 == 0x7c00 && h & 0x3ff != 0);
        } else {
            assert_eq!(f32_to_half(Format::F16, v), h);
        }
    }
}

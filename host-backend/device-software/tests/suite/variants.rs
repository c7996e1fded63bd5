//! The arithmetic loop returns the same bits with every vector extension.

use paragpu_device_software::exec::frame::Frame;
use paragpu_device_software::exec::variants_unsafe::available;
use paragpu_device_software::program::{Inst, Op, Row32, Row64};
use proptest::prelude::*;

const ROWS: usize = 4;

/// Operations whose rows are all in the register files below; the immediate is 0.
const OPS: &[Op] = &[
    Op::Add32,
    Op::MulHiS32,
    Op::MadLo32,
    Op::DivS32,
    Op::RemU32,
    Op::Shl32,
    Op::ShrS32,
    Op::ShfLWrap,
    Op::MinS32,
    Op::SadS32,
    Op::Popc32,
    Op::Clz64,
    Op::Brev32,
    Op::BfeS32,
    Op::Dp4a,
    Op::Selp32,
    Op::FAdd,
    Op::FMul,
    Op::FFma,
    Op::FFmaZ,
    Op::FDiv,
    Op::FSqrt,
    Op::FMin,
    Op::FMaxNan,
    Op::FSat,
    Op::F32ToS32,
    Op::F64ToU32,
    Op::S64ToF32,
    Op::U32ToF32,
    Op::F64ToF32,
    Op::Add64,
    Op::MulLo64,
    Op::MulHiU64,
    Op::MadWideS32,
    Op::DivU64,
    Op::ShrS64,
    Op::DFma,
    Op::DDiv,
    Op::DMin,
    Op::F32ToF64,
    Op::U64ToF64,
    Op::F32ToS64,
    Op::F64ToU64,
    Op::LtS32,
    Op::LeU64,
    Op::FLt,
    Op::FNe,
    Op::FNan,
    Op::DLe,
    Op::PXor,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn variants_agree(words in prop::collection::vec(any::<u64>(), ROWS * 32), active in any::<u32>(), preds in any::<[u32; 4]>()) {
        let code: Vec<Inst> = OPS
            .iter()
            .map(|&op| Inst { op, guard: 0, d: 3, a: 0, b: 1, c: 2, imm: 0 })
            .collect();
        for inst in &code {
            let mut results = Vec::new();
            for (name, straight) in available() {
                let mut r32: Vec<Row32> = words.chunks(32).map(|c| Row32(std::array::from_fn(|l| c[l] as u32))).collect();
                let mut r64: Vec<Row64> = words.chunks(32).map(|c| Row64(std::array::from_fn(|l| c[l].rotate_left(9)))).collect();
                let mut p = preds;
                let mut frame = Frame { r32: &mut r32, r64: &mut r64, p: &mut p };
                let end = straight(&mut frame, None, std::slice::from_ref(inst), 0, 1, active);
                assert_eq!(end.pc, 1);
                results.push((name, r32[3].0, r64[3].0, p));
            }
            for pair in results.windows(2) {
                prop_assert!(pair[0].1 == pair[1].1 && pair[0].2 == pair[1].2 && pair[0].3 == pair[1].3, "{:?}: {} and {}", inst.op, pair[0].0, pair[1].0);
            }
        }
    }
}

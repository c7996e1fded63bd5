//! Modules of a session with the software GPU.
#![allow(unsafe_code)]

mod common;

use common::Worker;

/// So many that they take several round trips.
const KERNELS: usize = 150;

#[test]
fn kernels_are_looked_up_together() {
    let Some((worker, session)) = Worker::start(0) else {
        return;
    };
    let mut text = String::from(".version 8.0\n.target sm_75\n.address_size 64\n");
    for kernel in 0..KERNELS {
        let parameters = (0..=kernel % 3).map(|at| format!(".param .u32 unused{at}"));
        let parameters = parameters.collect::<Vec<_>>().join(", ");
        text.push_str(&format!(
            ".visible .entry kernel{kernel}({parameters}) {{ ret; }}\n"
        ));
    }
    let module = session.modules().load(text.as_bytes(), &[]).unwrap();
    session.modules().load_functions(&module).unwrap();
    assert_eq!(worker.count("FunctionGet"), KERNELS as u64);
    let calls = worker.calls();
    session.modules().load_functions(&module).unwrap();
    for kernel in 0..KERNELS {
        let name = format!("kernel{kernel}");
        let function = session.modules().function(&module, &name).unwrap();
        assert_eq!(function.parameters().len(), 1 + kernel % 3, "{name}");
    }
    assert_eq!(worker.calls(), calls);
    // A kernel that is not in the module is still asked for.
    assert!(session.modules().function(&module, "missing").is_err());
    assert_eq!(worker.calls(), calls + 1);
}

//! The daemon's orders to a session that has nothing else to do.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::testing::guest::Guest;
use crate::transfer::orders::{CheckpointTarget, Order, Orders, Report};

#[test]
fn an_order_that_comes_before_the_session_waits_for_calls_is_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let (say, reports) = channel();
    let orders = Arc::new(Orders::new(move |report| {
        let _ = say.send(report);
    }));
    let checkpoint = || Order::Checkpoint {
        target: CheckpointTarget {
            directory: folder.path().to_owned(),
            file: None,
        },
        end: false,
    };
    assert!(orders.give(checkpoint()));
    let guest = Guest::with_orders(Arc::clone(&orders));
    for later in [true, false] {
        let report = reports.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(matches!(report, Report::Done(_)), "{report:?}");
        if later {
            assert!(orders.give(checkpoint()));
        }
    }
    guest.goodbye();
}

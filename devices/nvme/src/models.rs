//! Models of the state that the controller's threads share, in every order of events that the
//! memory model permits: `cargo test -p peerbar-nvme --features loom --lib models`.

mod completions;
mod sleep;

/// Runs `test` in every order of events that preempts threads at most `preemptions` times.
fn every_order(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

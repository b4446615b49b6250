//! Programs of the host in the guest, and work of the host at the same time.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, anyhow};
use peerbar_report::exec::ProgramRequest;

use super::{Lab, ProgramOutput};
use crate::debugger::NO_LIMIT;
use crate::guest::{GuestEvent, Next};
use crate::guest_program::{GuestProgram, ProgramError};
use crate::lab_error::LabError;
use crate::limited::Limited;
use crate::qemu::Sockets;
use crate::size::Size;

/// Most bytes of a stream of [`Lab::program`]: the guest is not trusted with the host's memory.
const MOST_OUTPUT: Size = Size(256 << 20);

impl Lab {
    /// Runs a program in the guest, with `input` as its standard input. A status other than 0 is no
    /// error. Another thread may run more at the same time: see [`Lab::socket`].
    ///
    /// # Errors
    /// The reason why the guest cannot start it or continue; a signal; more than 256 MiB of a
    /// stream; a lab without [`LabOptions::access`](crate::lab_options::LabOptions::access) starts
    /// none.
    pub fn program(
        &mut self,
        request: &ProgramRequest,
        input: &[u8],
    ) -> Result<ProgramOutput, LabError> {
        let output = self.run_beside(|socket, signals| {
            let stream = || Limited::new(Vec::new(), MOST_OUTPUT, "write it to a file");
            let (mut output, mut errors) = (stream(), stream());
            let program = GuestProgram::start(socket, request)?.ends_with(signals);
            let end = program.run(&mut &*input, &mut output, &mut errors)?;
            Ok::<_, ProgramError>(ProgramOutput {
                status: end.status(),
                output: output.into_inner(),
                errors: errors.into_inner(),
            })
        });
        Ok(output??)
    }

    /// Returns the socket for [`GuestProgram::start`]. The guest's console must be read at the same
    /// time: see [`Lab::run_beside`].
    pub fn socket(&self) -> PathBuf {
        Sockets::in_folder(self.temporary.path()).vsock_programs()
    }

    /// Runs `work` on a separate thread while this one serves the guest. Signals come to `work` as
    /// bytes with their numbers.
    ///
    /// # Errors
    /// A guest or a server that ends before the work does. It then waits for the work, and other
    /// work may follow.
    pub fn run_beside<T: Send>(
        &mut self,
        work: impl FnOnce(&Path, UnixStream) -> T + Send,
    ) -> Result<T, LabError> {
        let socket = self.socket();
        let pair = || UnixStream::pair().context("cannot make a socket pair");
        let (done, tells_done) = pair()?;
        let (signals, received_signals) = pair()?;
        self.guest.add_work(done);
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let _tells_done = tells_done;
                work(&socket, received_signals)
            });
            let followed = self.follow_until_done(&signals);
            if followed.is_err() {
                // The next work must not see that this one has ended.
                self.guest.remove_work();
            }
            // Work that waits for a signal, or for a guest that is gone, ends by that.
            drop(signals);
            let done = worker.join().map_err(|_| anyhow!("the work panicked"))?;
            followed.map(|()| done)
        })
    }

    fn follow_until_done(&mut self, signals: &UnixStream) -> Result<(), LabError> {
        let followed = self.guest.follow(NO_LIMIT, |_, event| {
            Ok::<_, LabError>(match event {
                GuestEvent::WorkDone => Next::Done(()),
                GuestEvent::Signal(number) => {
                    let number = u8::try_from(number).unwrap_or_default();
                    // The error is ignored: work that has ended reads no signals.
                    let _ = (&mut &*signals).write_all(&[number]);
                    Next::FollowFor(NO_LIMIT)
                }
                GuestEvent::Report(_) | GuestEvent::Console(_) | GuestEvent::Late => Next::Follow,
            })
        })?;
        followed.map_err(|ending| self.ended(ending))
    }
}

//! The trace as a time line for Perfetto.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use peerbar_vfio_user::decode::{Fields, error_name};
use peerbar_vfio_user::relay::{Notice, Side, now};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::in_flight::{Reply, Request};
use super::lines::{described_notice, name};
use crate::trace::file::{Argument, TimedEvent, TraceFile, Track};

/// Writes while the trace goes on, so that it takes no memory. The first failure ends it.
pub(super) struct TimeLine {
    path: PathBuf,
    file: TraceFile<BufWriter<File>>,
    client: Lanes,
    server: Lanes,
    notices: Track,
    failure: Option<io::Error>,
}

/// The tracks of one side's requests. Those that are in flight at once are on different ones.
struct Lanes {
    group: Track,
    tracks: Vec<Lane>,
    free: BTreeSet<usize>,
    /// The track of requests that want no reply.
    posted: Option<Track>,
}

struct Lane {
    track: Track,
    /// Number of the request that is in flight.
    request: u64,
}

impl TimeLine {
    /// Begins a file.
    pub(super) fn begin(path: &Path, file: File) -> anyhow::Result<Self> {
        Self::begin_file(path, file).with_context(|| format!("cannot write {}", path.display()))
    }

    fn begin_file(path: &Path, file: File) -> io::Result<Self> {
        let realtime = clock_gettime(ClockId::Realtime);
        let seconds = u64::try_from(realtime.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(realtime.tv_nsec).unwrap_or_default();
        let realtime = seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        let mut file = TraceFile::begin(BufWriter::new(file), now(), realtime)?;
        let client = Lanes::new(file.track("requests of the client", None)?);
        let server = Lanes::new(file.track("requests of the server", None)?);
        let notices = file.track("connection", None)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            client,
            server,
            notices,
            failure: None,
        })
    }

    fn write(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        if self.failure.is_none() {
            self.failure = write(self).err();
        }
    }

    fn lanes(&mut self, side: Side) -> (&mut Lanes, &mut TraceFile<BufWriter<File>>) {
        match side {
            Side::Client => (&mut self.client, &mut self.file),
            Side::Server => (&mut self.server, &mut self.file),
        }
    }

    /// Begins a request's slice, which its reply ends.
    pub(super) fn request(&mut self, request: &Request) {
        self.write(|this| {
            let (lanes, file) = this.lanes(request.from);
            if request.wants_reply {
                return lanes.begin(file, request.number);
            }
            let track = lanes.posted(file)?;
            let event = TimedEvent::instant(request.at, name(request.command));
            file.event(track, &described(event, request))
        });
    }

    /// Adds the slice of an answered request.
    pub(super) fn reply(&mut self, reply: &Reply) {
        let Some(request) = &reply.request else {
            return;
        };
        let event = match &reply.outcome {
            Ok(fields) => arguments(slice(request, reply.at), fields),
            Err(errno) => {
                slice(request, reply.at).with("error", Argument::Text(error_name(*errno)))
            }
        };
        self.add(request, &event);
    }

    /// Adds the slice of a request that has no reply so far.
    pub(super) fn unanswered(&mut self, request: &Request, until: u64) {
        let event = slice(request, until).with("error", Argument::Word("no reply"));
        self.add(request, &event);
    }

    fn add(&mut self, request: &Request, event: &TimedEvent) {
        self.write(|this| {
            let (lanes, file) = this.lanes(request.from);
            match lanes.end(request.number) {
                Some(track) => file.event(track, event),
                None => Ok(()),
            }
        });
    }

    /// Adds something other than a message.
    pub(super) fn notice(&mut self, from: Side, at: u64, notice: Notice) {
        self.write(|this| {
            let event = TimedEvent::instant(at, described_notice(from, notice));
            this.file.event(this.notices, &event)
        });
    }

    /// Ends the file.
    ///
    /// # Errors
    /// A part could not be written.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let ended = match self.failure {
            Some(failure) => Err(failure),
            None => self.file.end(),
        };
        ended.map_err(|error| {
            anyhow!(error).context(format!("cannot write {}", self.path.display()))
        })
    }
}

impl Lanes {
    fn new(group: Track) -> Self {
        Self {
            group,
            tracks: Vec::new(),
            free: BTreeSet::new(),
            posted: None,
        }
    }

    /// Gives a request the first free lane.
    fn begin(&mut self, file: &mut TraceFile<BufWriter<File>>, request: u64) -> io::Result<()> {
        let free = self.free.pop_first();
        match free.and_then(|index| self.tracks.get_mut(index)) {
            Some(lane) => lane.request = request,
            None => {
                let track = file.track("in flight", Some(self.group))?;
                self.tracks.push(Lane { track, request });
            }
        }
        Ok(())
    }

    /// Frees the lane of a request, and returns its track.
    fn end(&mut self, request: u64) -> Option<Track> {
        let mut lanes = self.tracks.iter().enumerate();
        let is_its =
            |(index, lane): &(usize, &Lane)| lane.request == request && !self.free.contains(index);
        let (index, lane) = lanes.find(is_its)?;
        self.free.insert(index);
        Some(lane.track)
    }

    fn posted(&mut self, file: &mut TraceFile<BufWriter<File>>) -> io::Result<Track> {
        if let Some(track) = self.posted {
            return Ok(track);
        }
        let track = file.track("without a reply", Some(self.group))?;
        self.posted = Some(track);
        Ok(track)
    }
}

fn slice(request: &Request, until: u64) -> TimedEvent {
    let event = TimedEvent::slice(request.at, until, name(request.command));
    described(event, request)
}

/// Adds a request's id, fields and descriptors.
fn described(event: TimedEvent, request: &Request) -> TimedEvent {
    let event = event.with("id", Argument::Number(request.id.into()));
    let event = arguments(event, &request.fields);
    let files = request.descriptors.iter();
    files.fold(event, |event, file| {
        event.with("fd", Argument::Text(file.to_string()))
    })
}

fn arguments(event: TimedEvent, fields: &Fields) -> TimedEvent {
    fields.iter().fold(event, |event, field| {
        let value = match &field.value {
            Value::Number(number) if ["address", "offset", "value"].contains(&field.name) => {
                Argument::Address(number.as_u64().unwrap_or_default())
            }
            Value::Number(number) => Argument::Number(number.as_u64().unwrap_or_default()),
            Value::String(text) => Argument::Text(text.clone()),
            other => Argument::Text(other.to_string()),
        };
        event.with(field.name, value)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::trace::tests::events_by_track;

    fn request(number: u64, from: Side, command: u16, wants_reply: bool) -> Request {
        Request {
            number,
            at: 1000 + number,
            from,
            id: 7,
            command,
            fields: Fields::default(),
            descriptors: Vec::new(),
            wants_reply,
        }
    }

    fn reply(request: &Request, at: u64, outcome: Result<Fields, u32>) -> Reply {
        Reply {
            at,
            from: request.from.other(),
            id: request.id,
            command: request.command,
            outcome,
            descriptors: Vec::new(),
            request: Some(request.clone()),
        }
    }

    #[test]
    fn requests_in_flight_at_once_are_on_lanes_of_their_side() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let mut time_line = TimeLine::begin(&path, File::create(&path).unwrap()).unwrap();
        let requests = [
            request(0, Side::Client, 9, true),
            request(1, Side::Client, 2, true),
            request(2, Side::Server, 11, true),
            request(3, Side::Client, 10, false),
            request(4, Side::Client, 13, true),
        ];
        for each in &requests[..4] {
            time_line.request(each);
        }
        time_line.reply(&reply(&requests[0], 2000, Ok(Fields::default())));
        time_line.request(&requests[4]);
        time_line.reply(&reply(&requests[1], 3000, Err(22)));
        time_line.unanswered(&requests[2], 4000);
        time_line.reply(&reply(&requests[4], 5000, Ok(Fields::default())));
        time_line.notice(Side::Client, 6000, Notice::Closed);
        time_line.end().unwrap();
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        let slice = |name: &str| [(1, name.to_owned()), (2, String::new())];
        let instant = |name: &str| vec![(3, name.to_owned())];
        let reused = [slice("REGION_READ"), slice("DEVICE_RESET")].concat();
        let expected = [
            ("connection 3", instant("the client closes the connection")),
            ("requests of the client/in flight 4", reused),
            (
                "requests of the client/in flight 5",
                slice("DMA_MAP").to_vec(),
            ),
            (
                "requests of the client/without a reply 7",
                instant("REGION_WRITE"),
            ),
            (
                "requests of the server/in flight 6",
                slice("DMA_READ").to_vec(),
            ),
        ];
        let expected = expected.map(|(track, events)| (track.to_owned(), events));
        assert_eq!(events_by_track(&bytes), expected.into());
    }

    #[test]
    fn full_disk_is_reported_at_the_end() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut time_line = TimeLine::begin(Path::new("x"), full).unwrap();
        for number in 0..10_000 {
            time_line.request(&request(number, Side::Client, 10, false));
        }
        let error = format!("{:#}", time_line.end().unwrap_err());
        assert!(error.starts_with("cannot write x: "), "{error}");
    }
}

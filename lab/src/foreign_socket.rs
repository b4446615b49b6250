//! The socket of a server of another project.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The kernel's list of Unix sockets (proc(5)).
const SOCKETS: &str = "/proc/net/unix";
/// The flag of a socket that listens in that list: `__SO_ACCEPTCON` (Linux include/linux/net.h).
const LISTENS: u32 = 1 << 16;

/// Returns `true` if `file` exists and, if it is a socket, a server listens at it. A connection
/// would tell that too, but many servers take only one.
pub(crate) fn is_ready(file: &Path) -> bool {
    match fs::metadata(file) {
        Ok(found) if found.file_type().is_socket() => {
            let sockets = fs::read_to_string(SOCKETS).unwrap_or_default();
            // A server in another mount or network namespace is not in the list by this path.
            listening(&sockets, file).unwrap_or(true)
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Returns `true` if a socket bound at `file` listens, or `None` if the list has no such socket.
fn listening(sockets: &str, file: &Path) -> Option<bool> {
    let path = file.to_str()?;
    let at_path = sockets.lines().filter_map(|line| {
        let (fields, bound) = line.split_once(path)?;
        let flags = fields.split_whitespace().nth(3)?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        bound.is_empty().then_some(flags & LISTENS != 0)
    });
    at_path.reduce(|one, other| one || other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

    use super::*;

    #[test]
    fn socket_is_ready_once_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let [bound, listens, file] = ["a", "b", "c"].map(|name| folder.path().join(name));
        assert!(!is_ready(&bound));
        let _bound = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&_bound, &SocketAddrUnix::new(&bound).unwrap()).unwrap();
        let _listener = UnixListener::bind(&listens).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(
            [&bound, &listens, &file].map(|path| is_ready(path)),
            [false, true, true]
        );
    }
}

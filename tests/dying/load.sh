# Writes and flushes numbered blocks, reads them back, and has fio write and verify through peer memory, until it is killed.
# Prints "flushed DISK NUMBER" after the fsync of a block, and "wrong ..." for wrong data. Errors are permitted.
# Arguments: the seed, the block devices of disk0 and disk1, the p2pmem file of disk0.

block() { # DISK NUMBER
    yes "peerbar $seed $1 $2" | head -c 4096
}

write_and_read() { # DISK DEVICE
    number=1
    while :; do
        if block "$1" $number | dd of="$2" bs=4096 seek=$number iflag=fullblock conv=fsync,notrunc status=none; then
            echo "flushed $1 $number"
            # Past the page cache.
            if dd if="$2" of="/tmp/$1" bs=4096 skip=$number count=1 iflag=direct status=none; then
                block "$1" $number | cmp -s - "/tmp/$1" || echo "wrong $1 $number"
            fi
        fi
        number=$((number + 1))
    done
}

seed=$1
write_and_read disk0 "$2" 2> /dev/null &
write_and_read disk1 "$3" 2> /dev/null &
while :; do
    fio --name=peer --filename="$3" --offset=32M --size=4M --direct=1 --ioengine=libaio --iodepth=4 --rw=write --bs=64k \
        --iomem=mmapshared:"$4" --verify=crc32c > /tmp/fio 2>&1 && echo verified
    grep -q 'verify failed\|verify: bad' /tmp/fio && echo "wrong peer"
done

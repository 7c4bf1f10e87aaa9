# Constants, C tables and the checksum; included by _binlog.pyx.

cdef extern from *:
    """
    #include <stdint.h>
    static const int64_t penstock_tens[19] = {
        1LL, 10LL, 100LL, 1000LL, 10000LL, 100000LL, 1000000LL, 10000000LL, 100000000LL,
        1000000000LL, 10000000000LL, 100000000000LL, 1000000000000LL, 10000000000000LL,
        100000000000000LL, 1000000000000000LL, 10000000000000000LL, 100000000000000000LL,
        1000000000000000000LL};
    static const double penstock_tens_float[23] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
        1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    static const int penstock_rest_bytes[10] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4};
    /* The letter behind the backslash for a byte inside JSON text, 'u' for a code; 0: itself. */
    static const char penstock_escapes[256] = {
        'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u',
        'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
        0, 0, '"', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '\\\\'};
    static uint32_t penstock_crc[8][256];
    static void penstock_crc_fill(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
            penstock_crc[0][i] = value;
        }
        for (int table = 1; table < 8; table++)
            for (uint32_t i = 0; i < 256; i++)
                penstock_crc[table][i] =
                    penstock_crc[table - 1][i] >> 8 ^
                    penstock_crc[0][penstock_crc[table - 1][i] & 0xFF];
    }
    /* CRC-32 as zlib has it, eight bytes at a time. */
    static uint32_t penstock_crc32(uint32_t crc, const uint8_t *p, int64_t n) {
        crc = ~crc;
        while (n >= 8) {
            uint32_t low, high;
            memcpy(&low, p, 4);
            memcpy(&high, p + 4, 4);
            low ^= crc;
            crc = penstock_crc[7][low & 0xFF] ^ penstock_crc[6][low >> 8 & 0xFF] ^
                  penstock_crc[5][low >> 16 & 0xFF] ^ penstock_crc[4][low >> 24] ^
                  penstock_crc[3][high & 0xFF] ^ penstock_crc[2][high >> 8 & 0xFF] ^
                  penstock_crc[1][high >> 16 & 0xFF] ^ penstock_crc[0][high >> 24];
            p += 8;
            n -= 8;
        }
        while (n-- > 0)
            crc = crc >> 8 ^ penstock_crc[0][(crc ^ *p++) & 0xFF];
        return ~crc;
    }
    """
    const int64_t* TENS "penstock_tens"
    const double* TENS_FLOAT "penstock_tens_float"
    const int* REST_BYTES "penstock_rest_bytes"
    const uint8_t* ESCAPES "((const uint8_t *)penstock_escapes)"
    const uint8_t* HEX "((const uint8_t *)\"0123456789ABCDEF\")"
    const uint8_t* HEX_LOW "((const uint8_t *)\"0123456789abcdef\")"
    void crc_fill "penstock_crc_fill"() noexcept nogil
    uint32_t crc32 "penstock_crc32"(uint32_t crc, const uint8_t* p, int64_t n) noexcept nogil

cdef enum:
    FAILED = -1
    OUT_OF_MEMORY = -2
    RAISED = -3

cdef enum:
    GO_ON = 0
    STOP_LIMIT = 1
    STOP_COMMIT = 2
    STOP_MESSAGE = 4
    STOP_WIDEN = 5
    STOP_OTHER_FRAME = 6
    NOT_WHOLE = 7  # inside alone: the rest of the block is not a whole packet

cdef enum:
    BAD_PACKET = 1
    BAD_EVENT_LENGTH = 2
    BAD_CHECKSUM = 3
    BAD_UNKNOWN_EVENT = 4
    BAD_NO_FORMAT = 5
    BAD_FORMAT = 6
    BAD_MAGIC = 8
    BAD_NO_TRANSACTION = 9
    BAD_NESTED_BEGIN = 10
    BAD_EVENT_BODY = 11
    BAD_UNBOUND = 12
    BAD_COLUMN_COUNT = 13
    BAD_TRUNCATED = 14
    BAD_VALUE = 15
    BAD_TEXT = 16
    BAD_DEFAULTED = 17
    BAD_BEFORE = 18
    BAD_TOO_LONG = 19
    BAD_ENCRYPTED = 21
    BAD_PLACE = 22

cdef enum:
    HEAD = 19  # bytes of an event's head
    SEAL = 4  # bytes of its checksum

cdef enum:
    PACKETS = 0
    FILE_BYTES = 1
    BARE = 2

cdef enum:
    QUERY = 2
    ROTATE = 4
    FORMAT_DESCRIPTION = 15
    XID = 16
    TABLE_MAP = 19
    HEARTBEAT = 27
    GTID = 33
    ANONYMOUS_GTID = 34
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIA_GTID = 162
    START_ENCRYPTION = 164

cdef enum:
    ARTIFICIAL = 0x20
    IGNORABLE = 0x80

# What to do with an event, by its type; filled below.
cdef enum:
    ACT_UNKNOWN = 0
    ACT_PASS = 1
    ACT_MESSAGE = 2
    ACT_STATEMENT = 3
    ACT_ROWS = 4
    ACT_INFLATE = 5
    ACT_ENDING = 6  # a message that ends a group of one statement
cdef uint8_t ACTIONS[256]
cdef bint OUTER[256]  # never inside another event

cdef int64_t EVENT_LENGTH_MAX = binlog_outcome.EVENT_LENGTH_MAX_BYTES
cdef int64_t TEXT_MAX = binlog_outcome.TEXT_LENGTH_MAX_BYTES
cdef int64_t COLUMN_COUNT_MAX = binlog_images.COLUMN_COUNT_MAX
cdef uint64_t NUMBER_MAX = mysql_gtids.NUMBER_MAX
cdef int64_t GAP_MAX = binlog_outcome.GAP_MAX_BYTES
cdef int OFFSET_BITS = binlog_outcome.OFFSET_BITS

_STOPS = {int(stop): stop for stop in Stop}


def _fill_actions():
    cdef int kind
    memset(ACTIONS, ACT_UNKNOWN, 256)
    for kinds, action in (
        (binlog_walk.PASSED_KINDS, ACT_PASS),
        ({START_ENCRYPTION}, ACT_PASS),
        (binlog_walk.MESSAGE_KINDS, ACT_MESSAGE),
        (binlog_walk.ENDING_KINDS, ACT_ENDING),
        (binlog_walk.STATEMENT_KINDS, ACT_STATEMENT),
        (binlog_walk.ROW_KINDS, ACT_ROWS),
        (binlog_walk.INFLATED_KINDS, ACT_INFLATE),
    ):
        for kind in kinds:
            ACTIONS[kind] = action
    for kind in binlog_walk.OUTER_KINDS:
        OUTER[kind] = True


_fill_actions()
crc_fill()

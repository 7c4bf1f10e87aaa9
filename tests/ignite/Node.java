import java.io.Externalizable;
import java.io.ObjectInput;
import java.io.ObjectOutput;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import javax.cache.expiry.CreatedExpiryPolicy;
import javax.cache.expiry.Duration;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteCache;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryObject;
import org.apache.ignite.cache.CacheAtomicityMode;
import org.apache.ignite.cache.affinity.rendezvous.RendezvousAffinityFunction;
import org.apache.ignite.cache.query.SqlFieldsQuery;
import org.apache.ignite.cluster.ClusterState;
import org.apache.ignite.configuration.BinaryConfiguration;
import org.apache.ignite.configuration.CacheConfiguration;
import org.apache.ignite.configuration.DataRegionConfiguration;
import org.apache.ignite.configuration.DataStorageConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.spi.communication.tcp.TcpCommunicationSpi;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;
import org.apache.ignite.transactions.Transaction;

/** A real node with change data capture, and what is done on it: SCENARIO WORK [PORT]. */
public final class Node {
    private static final int SEGMENT_BYTES = 512 * 1024;
    private static final int PORT = 47811;

    private Node() {
    }

    public static void main(String[] args) throws Exception {
        Path work = Path.of(args[1]);
        switch (args[0]) {
            case "all":
                all(work);
                break;
            case "two":
                two(work);
                break;
            case "many":
                many(work, Integer.parseInt(args[2]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    static IgniteConfiguration config(Path work, String consistentId) {
        DataRegionConfiguration region = new DataRegionConfiguration()
            .setPersistenceEnabled(true)
            .setCdcEnabled(true)
            .setInitialSize(16 << 20)
            .setMaxSize(Long.getLong("region", 128) << 20);
        DataStorageConfiguration storage = new DataStorageConfiguration()
            .setDefaultDataRegionConfiguration(region)
            .setWalSegmentSize(Integer.getInteger("segment", SEGMENT_BYTES))
            .setWalSegments(4)
            .setWalForceArchiveTimeout(1500);
        TcpDiscoverySpi discovery = new TcpDiscoverySpi();
        discovery.setLocalAddress("127.0.0.1");
        int port = Integer.getInteger("port", PORT);
        discovery.setLocalPort(port);
        discovery.setIpFinder(new TcpDiscoveryVmIpFinder()
            .setAddresses(List.of("127.0.0.1:" + port + ".." + (port + 2))));
        TcpCommunicationSpi communication = new TcpCommunicationSpi();
        communication.setLocalAddress("127.0.0.1");
        communication.setLocalPort(port + 100);
        return new IgniteConfiguration()
            .setIgniteInstanceName(consistentId)
            .setConsistentId(consistentId)
            .setWorkDirectory(work.toString())
            .setDataStorageConfiguration(storage)
            .setBinaryConfiguration(new BinaryConfiguration().setCompactFooter(!Boolean.getBoolean("fullFooter")))
            .setDiscoverySpi(discovery)
            .setCommunicationSpi(communication)
            .setConnectorConfiguration(null)
            .setClientConnectorConfiguration(null)
            .setMetricsLogFrequency(0)
            .setPeerClassLoadingEnabled(false);
    }

    /** One part of all(), on a node that lives on. */
    static void scenario(String name, Ignite node) throws InterruptedException {
        switch (name) {
            case "people":
                people(node);
                break;
            case "transactions":
                transactions(node);
                break;
            case "values":
                values(node);
                break;
            case "shapes":
                shapes(node);
                break;
            case "tables":
                tables(node);
                break;
            case "expiring":
                expiring(node);
                break;
            case "destroyed":
                destroyed(node);
                break;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static <K, V> CacheConfiguration<K, V> cache(String name, CacheAtomicityMode mode) {
        return new CacheConfiguration<K, V>(name)
            .setAtomicityMode(mode)
            .setAffinity(new RendezvousAffinityFunction(false, 8));
    }

    /** Every kind of change and of value, on one node. */
    private static void all(Path work) throws Exception {
        try (Ignite node = Ignition.start(config(work, "node-1"))) {
            node.cluster().state(ClusterState.ACTIVE);
            people(node);
            transactions(node);
            values(node);
            shapes(node);
            tables(node);
            expiring(node);
            destroyed(node);
            awaitArchived(work);
        }
    }

    private static void people(Ignite node) {
        IgniteCache<Integer, Person> cache = node.createCache(cache("person", CacheAtomicityMode.ATOMIC));
        for (int key = 0; key < 20; key++)
            cache.put(key, new Person("Name " + key, 20 + key));
        Map<Integer, Person> many = new TreeMap<>();
        for (int key = 100; key < 140; key++)
            many.put(key, new Person("Many " + key, key));
        cache.putAll(many);
        cache.remove(3);
        cache.removeAll(new HashSet<>(List.of(4, 5, 100)));
        cache.replace(6, new Person("Zoë \uD83D\uDE00", -1));
        cache.invoke(7, (entry, more) -> {
            entry.setValue(new Person("Invoked", 7));
            return null;
        });
        IgniteCache<String, Integer> words = node.createCache(cache("words", CacheAtomicityMode.ATOMIC));
        words.put("one", 1);
        words.put("", 0);
        words.put("zwölf", 12);
        words.put("one", 11);
        words.remove("");
        IgniteCache<Place, Long> places = node.createCache(cache("place", CacheAtomicityMode.ATOMIC));
        places.put(new Place(1, "north"), 1L);
        places.put(new Place(2, null), Long.MIN_VALUE);
        places.remove(new Place(1, "north"));
    }

    private static void transactions(Ignite node) {
        IgniteCache<Integer, Person> cache = node.createCache(cache("bank", CacheAtomicityMode.TRANSACTIONAL));
        try (Transaction one = node.transactions().txStart()) {
            for (int key = 0; key < 12; key++)
                cache.put(key, new Person("Account " + key, 100));
            one.commit();
        }
        try (Transaction one = node.transactions().txStart()) {
            cache.put(1, new Person("Account 1", 90));
            cache.put(2, new Person("Account 2", 110));
            cache.remove(3);
            one.commit();
        }
        try (Transaction one = node.transactions().txStart()) {
            cache.put(1, new Person("never", 0));
            one.rollback();
        }
        cache.put(200, new Person("alone", 1));
    }

    private static void values(Ignite node) {
        IgniteCache<Object, Object> cache = node.createCache(cache("value", CacheAtomicityMode.ATOMIC));
        Date date = new Date(1_700_000_000_123L);
        Timestamp time = new Timestamp(1_700_000_000_000L);
        time.setNanos(123_456_789);
        Timestamp early = new Timestamp(-5_000_000_000_001L);
        early.setNanos(999_000_001);
        List<Object> values = new ArrayList<>(Arrays.asList(
            (byte)-7, (short)-300, 70_000, -5_000_000_000L, 1.5f, Float.NaN, -0.0, Double.MAX_VALUE, 'x', '\uFFFF',
            true, false, "text", "", "\u0000 \uD83D\uDE00 é", new UUID(1, -2), date, new Date(Long.MIN_VALUE), time,
            early, new Time(3_600_001), new BigDecimal("-12.3400"), new BigDecimal("1E+40"), BigDecimal.ZERO,
            new BigDecimal(new BigInteger("-128")), new BigDecimal(new BigInteger("128"), 300), Colour.GREEN));
        values.addAll(Arrays.asList(
            new byte[] {1, -2, 3}, new byte[0], new short[] {1, -2}, new int[] {1, -2}, new long[] {1, Long.MIN_VALUE},
            new float[] {1.5f}, new double[] {-2.5, Double.POSITIVE_INFINITY}, new char[] {'a', '\uD800'},
            new boolean[] {true, false}, new String[] {"a", null, ""}, new UUID[] {new UUID(3, 4), null},
            new Date[] {date, null}, new BigDecimal[] {BigDecimal.TEN, null}, new Timestamp[] {time, null},
            new Time[] {new Time(5), null}, new Object[] {1, "two", null, new Person("in array", 3)},
            new Person[] {new Person("p", 1), null}, new Colour[] {Colour.RED, null, Colour.BLUE},
            new int[0], new String[0], new Object[0]));
        Map<Object, Object> ordered = new LinkedHashMap<>();
        ordered.put("one", 1);
        ordered.put(2, new ArrayList<>(List.of("x", 2.5)));
        ordered.put(null, null);
        values.addAll(Arrays.asList(
            new ArrayList<>(Arrays.asList(1, null, "three")), new LinkedList<>(List.of(1L, 2L)),
            new HashSet<>(List.of("a", "b")), new LinkedHashSet<>(List.of(3, 1, 2)), Collections.singletonList("one"),
            new HashMap<>(Map.of("k", 1, "l", 2)), ordered, new ArrayList<>(), new HashMap<>()));
        int key = 0;
        for (Object value : values)
            cache.put(key++, value);
        Person shared = new Person("shared", 5);
        cache.put("all of them", new Everything(values.toArray(), shared));
        cache.put("handles", new Pair(shared, shared));
        Pair itself = new Pair(null, shared);
        itself.left = itself;
        cache.put("itself", new Pair(new Pair(shared, "deep"), new ArrayList<>(List.of(shared, shared))));
        cache.put("opaque", new Pair(new Opaque(), 1));
        cache.put("class", new Pair(String.class, Person.class));
        cache.put('k', "a char as key");
        cache.put(new UUID(5, 6), "a uuid as key");
        cache.put(1.25, "a double as key");
        cache.put(9_000_000_000L, "a long as key");
        cache.put(Colour.BLUE, "an enum as key");
        cache.put(new BigDecimal("7.70"), "a decimal as key");
        cache.put(date, "a date as key");
        cache.put("big", "x".repeat(70_000));
        cache.put("wide", new Pair("y".repeat(300), "z".repeat(300)));
        cache.put("wider", new Pair("y".repeat(70_000), "z"));
    }

    private static void shapes(Ignite node) {
        IgniteCache<Integer, BinaryObject> cache = node.createCache(
            CacheOf.<Integer, Object>plain("shape", CacheAtomicityMode.ATOMIC)).withKeepBinary();
        cache.put(1, node.binary().builder("demo.Shape").setField("a", 1).build());
        cache.put(1, node.binary().builder("demo.Shape").setField("a", 1).setField("b", "two").build());
        cache.put(2, node.binary().builder("demo.Shape").setField("c", 3.5).setField("b", "three").build());
        cache.put(3, node.binary().builder("demo.Shape").setField("c", null, Double.class).build());
        cache.put(4, node.binary().builder("demo.Shape").build());
        cache.put(5, node.binary().builder("demo.Shape").setField("b", "last").setField("a", 9).setField("d", 1L)
            .setField("inner", node.binary().builder("demo.Inner").setField("x", new int[] {1, 2}).build()).build());
        for (int fields = 1; fields < 40; fields += 13) {
            var builder = node.binary().builder("demo.Wide" + fields);
            for (int at = 0; at < fields; at++)
                builder.setField("field" + at, "value " + at);
            cache.put(10 + fields, builder.build());
        }
        cache.put(60, node.binary().buildEnum(Colour.class.getName(), Colour.RED.ordinal()));
        cache.remove(4);
    }

    private static void tables(Ignite node) {
        IgniteCache<Object, Object> any = node.cache("person").withKeepBinary();
        sql(any, "create table typed (id int primary key, bo boolean, ti tinyint, sm smallint, bi bigint, de decimal(20, 4),"
            + " re real, do double, ch char(5), vc varchar, da date, tm time, ts timestamp, uu uuid, bin binary(4))"
            + " with \"cache_name=typed,affinity_key=id,value_type=TypedRow\"".replace("affinity_key=id,", ""));
        sql(any, "insert into typed values (1, true, 7, 300, 5000000000, 1.2345, 1.5, 2.5, 'ab', 'text', '2024-02-29',"
            + " '12:34:56', '2024-02-29 12:34:56.123456', 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6', X'01020304')");
        sql(any, "insert into typed (id) values (2)");
        sql(any, "update typed set vc = 'other', de = -0.0001 where id = 1");
        sql(any, "delete from typed where id = 2");
        sql(any, "create table keyed (a int, b varchar, c varchar, primary key (a, b))");
        sql(any, "insert into keyed values (1, 'x', 'one'), (2, 'y', null)");
        sql(any, "alter table keyed add column d int");
        sql(any, "insert into keyed values (3, 'z', 'three', 33)");
        sql(any, "update keyed set d = 11 where a = 1");
        sql(any, "alter table keyed drop column c");
        sql(any, "insert into keyed values (4, 'w', 44)");
        sql(any, "delete from keyed where a = 2");
    }

    private static void sql(IgniteCache<?, ?> cache, String text) {
        cache.query(new SqlFieldsQuery(text).setSchema("PUBLIC")).getAll();
    }

    private static void expiring(Ignite node) throws InterruptedException {
        IgniteCache<Integer, String> cache = node.createCache(cache("expiring", CacheAtomicityMode.ATOMIC));
        cache.withExpiryPolicy(new CreatedExpiryPolicy(new Duration(TimeUnit.MILLISECONDS, 400))).put(1, "soon");
        cache.withExpiryPolicy(new CreatedExpiryPolicy(new Duration(TimeUnit.DAYS, 400))).put(2, "late");
        cache.put(3, "never");
        Thread.sleep(1500);
        cache.get(1);
    }

    private static void destroyed(Ignite node) {
        IgniteCache<Integer, String> cache = node.createCache(cache("again", CacheAtomicityMode.ATOMIC));
        cache.put(1, "first life");
        cache.destroy();
        cache = node.createCache(cache("again", CacheAtomicityMode.ATOMIC));
        cache.put(1, "second life");
        cache.clear();
        cache.put(2, "cleared before");
    }

    /** Backups, a node that stops and comes back: what it missed is written to it as preloaded. */
    private static void two(Path work) throws Exception {
        try (Ignite node = Ignition.start(config(work, "node-1"))) {
            Ignite other = Ignition.start(config(work, "node-2"));
            node.cluster().state(ClusterState.ACTIVE);
            node.cluster().baselineAutoAdjustEnabled(false);
            CacheConfiguration<Integer, Person> both = cache("both", CacheAtomicityMode.ATOMIC);
            IgniteCache<Integer, Person> cache = node.createCache(both.setBackups(1));
            CacheConfiguration<Integer, Person> ledger = cache("ledger", CacheAtomicityMode.TRANSACTIONAL);
            IgniteCache<Integer, Person> bank = node.createCache(ledger.setBackups(1));
            for (int key = 0; key < 30; key++)
                cache.put(key, new Person("Both " + key, key));
            try (Transaction one = node.transactions().txStart()) {
                for (int key = 0; key < 10; key++)
                    bank.put(key, new Person("Ledger " + key, key));
                one.commit();
            }
            Thread.sleep(2500);
            other.close();
            for (int key = 20; key < 40; key++)
                cache.put(key, new Person("Alone " + key, key));
            cache.remove(1);
            other = Ignition.start(config(work, "node-2"));
            Thread.sleep(4000);
            for (int key = 50; key < 60; key++)
                cache.put(key, new Person("Together " + key, key));
            awaitArchived(work);
            other.close();
        }
    }

    /** Objects of 8 fields for the bench. */
    private static void many(Path work, int count) throws Exception {
        try (Ignite node = Ignition.start(config(work, "node-1"))) {
            node.cluster().state(ClusterState.ACTIVE);
            IgniteCache<Long, BinaryObject> cache = node.createCache(
                CacheOf.<Long, Object>plain("many", CacheAtomicityMode.ATOMIC)).withKeepBinary();
            Map<Long, BinaryObject> batch = new TreeMap<>();
            for (long key = 0; key < count; key++) {
                batch.put(key, node.binary().builder("demo.Order").setField("id", key)
                    .setField("customer", (int)(key * 7919 % 100_000)).setField("item", "item " + key % 5000)
                    .setField("count", (int)(key % 17)).setField("price", key * 0.25).setField("paid", key % 3 == 0)
                    .setField("created", new Timestamp(1_700_000_000_000L + key)).setField("note", "note of " + key)
                    .build());
                if (batch.size() == 1000) {
                    cache.putAll(batch);
                    batch.clear();
                }
            }
            cache.putAll(batch);
            awaitArchived(work);
        }
    }

    /** Wait until the segment with the last change is archived, and no further one comes. */
    private static void awaitArchived(Path work) throws Exception {
        long before = -1;
        for (long now = segments(work); now != before; now = segments(work)) {
            before = now;
            Thread.sleep(4000);
        }
    }

    private static long segments(Path work) throws IOException {
        try (Stream<Path> files = Files.walk(work.resolve("db/wal/cdc"))) {
            return files.filter(file -> file.toString().endsWith(".wal")).count();
        }
    }

    /** Of any value: generics of a cache that takes objects in binary form. */
    private static final class CacheOf {
        @SuppressWarnings("unchecked")
        static <K, V> CacheConfiguration<K, V> plain(String name, CacheAtomicityMode mode) {
            return cache(name, mode);
        }
    }

    /** A value. */
    static final class Person {
        String name;
        int age;

        Person(String name, int age) {
            this.name = name;
            this.age = age;
        }
    }

    /** A key. */
    static final class Place {
        int number;
        String side;

        Place(int number, String side) {
            this.number = number;
            this.side = side;
        }
    }

    /** Any two. */
    static final class Pair {
        Object left;
        Object right;

        Pair(Object left, Object right) {
            this.left = left;
            this.right = right;
        }
    }

    /** Every value, as fields of their own types and as an array. */
    static final class Everything {
        byte tiny = -1;
        short small = 2;
        int number = 3;
        long big = 4;
        float real = 5.5f;
        double precise = 6.5;
        char letter = 'q';
        boolean flag = true;
        String text = "seven";
        UUID id = new UUID(8, 9);
        Colour colour = Colour.GREEN;
        Object[] values;
        Person person;
        Object nothing;

        Everything(Object[] values, Person person) {
            this.values = values;
            this.person = person;
        }
    }

    /** An enum. */
    enum Colour {
        /** */
        RED,
        /** */
        GREEN,
        /** */
        BLUE
    }

    /** What only its own class can read. */
    public static final class Opaque implements Externalizable {
        /** */
        public Opaque() {
        }

        @Override public void writeExternal(ObjectOutput out) throws IOException {
            out.writeUTF("of my own making");
        }

        @Override public void readExternal(ObjectInput in) throws IOException {
            in.readUTF();
        }
    }
}

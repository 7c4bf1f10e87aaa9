import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import javax.crypto.spec.SecretKeySpec;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteCache;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryObject;
import org.apache.ignite.binary.BinaryObjectException;
import org.apache.ignite.binary.BinaryReader;
import org.apache.ignite.binary.BinaryWriter;
import org.apache.ignite.binary.Binarylizable;
import org.apache.ignite.cache.CacheAtomicityMode;
import org.apache.ignite.cluster.ClusterState;
import org.apache.ignite.configuration.CacheConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.spi.encryption.keystore.KeystoreEncryptionSpi;
import org.apache.ignite.transactions.Transaction;

/** A node with encrypted caches beside others, and with rarer forms of values: WORK KEYSTORE. */
public final class Forms {
    private static final char[] PASSWORD = "secret".toCharArray();

    private Forms() {
    }

    public static void main(String[] args) throws Exception {
        Path work = Path.of(args[0]);
        Path keys = Path.of(args[1]);
        makeKeys(keys);
        KeystoreEncryptionSpi encryption = new KeystoreEncryptionSpi();
        encryption.setKeyStorePath(keys.toString());
        encryption.setKeyStorePassword(PASSWORD);
        IgniteConfiguration config = Node.config(work, "node-1").setEncryptionSpi(encryption);
        try (Ignite node = Ignition.start(config)) {
            node.cluster().state(ClusterState.ACTIVE);
            encrypted(node);
            forms(node);
            awaitArchived(work);
        }
    }

    private static void makeKeys(Path path) throws Exception {
        KeyStore keys = KeyStore.getInstance("PKCS12");
        keys.load(null, PASSWORD);
        keys.setEntry(KeystoreEncryptionSpi.DEFAULT_MASTER_KEY_NAME,
            new KeyStore.SecretKeyEntry(new SecretKeySpec(new byte[32], "AES")), new KeyStore.PasswordProtection(PASSWORD));
        try (OutputStream out = Files.newOutputStream(path)) {
            keys.store(out, PASSWORD);
        }
    }

    private static <V> IgniteCache<Integer, V> cache(Ignite node, String name, CacheAtomicityMode mode, boolean hidden) {
        return node.createCache(new CacheConfiguration<Integer, V>(name).setAtomicityMode(mode).setEncryptionEnabled(hidden));
    }

    /** Changes of an encrypted cache alone, and in one transaction with those of another one. */
    private static void encrypted(Ignite node) {
        IgniteCache<Integer, String> hidden = cache(node, "hidden", CacheAtomicityMode.TRANSACTIONAL, true);
        IgniteCache<Integer, String> shown = cache(node, "shown", CacheAtomicityMode.TRANSACTIONAL, false);
        for (int key = 0; key < 5; key++) {
            hidden.put(key, "hidden " + key);
            shown.put(key, "shown " + key);
        }
        try (Transaction one = node.transactions().txStart()) {
            shown.put(10, "in a transaction");
            hidden.put(10, "in a transaction");
            one.commit();
        }
        hidden.remove(1);
    }

    private static void forms(Ignite node) {
        IgniteCache<Integer, Object> cache = cache(node, "form", CacheAtomicityMode.ATOMIC, false);
        Map<String, Integer> sorted = new TreeMap<>(Map.of("a", 1, "b", 2));
        Object proxy = Proxy.newProxyInstance(Forms.class.getClassLoader(), new Class<?>[] {Named.class}, new Handler("me"));
        Person shared = new Person("shared", 5);
        BinaryObject outer = node.binary().toBinary(new Pair(new Person("inner", 1), "beside"));
        BinaryObject inner = outer.field("left");
        List<Object> values = new ArrayList<>(Arrays.asList(
            new Raw(7, "raw only", false), new Raw(8, "named and raw", true), new Raw(9, null, true),
            sorted, new TreeSet<>(List.of("x", "y")), new Vector<>(List.of(1, 2)), new Mine(List.of("m", "n")),
            new ConcurrentHashMap<>(Map.of("k", "v")), Collections.unmodifiableList(new ArrayList<>(List.of(1))),
            List.of(1, 2), Map.of("k", "v"), Collections.emptyList(), Arrays.asList(1, 2),
            Comparator.naturalOrder(), proxy, new Pair(proxy, 1), new Pair(inner, outer), new Object[] {inner, outer, inner},
            Odd.TWO, new Pair(Odd.ONE, Odd.TWO), new Odd[] {Odd.ONE, null, Odd.TWO}, new Pair(new Odd[] {Odd.TWO}, Odd.class),
            int.class, Named.class, new Class<?>[] {String.class, int[].class}, new int[][] {{1}, {2, 3}},
            new Person[][] {{shared, shared}, null}, new ArrayList<>(List.of(new Object[] {shared}, shared)),
            new LinkedHashMap<>(Map.of(shared, new ArrayList<>(List.of(shared)))),
            java.time.LocalDate.of(2024, 2, 29), java.time.Instant.ofEpochSecond(5, 6), new java.math.BigInteger("123456789012345678901234567890"),
            new java.util.concurrent.atomic.AtomicInteger(5), java.util.Optional.of("x"), new StringBuilder("built"),
            java.util.Locale.ROOT, new java.util.BitSet(9), new Node.Opaque(),
            new Node.Opaque[] {new Node.Opaque()}));
        Pair itself = new Pair(null, "round");
        itself.left = new ArrayList<>(List.of(itself));
        values.add(itself);
        int key = 0;
        for (Object value : values) {
            cache.put(key++, value);
        }
    }

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

    /** What a proxy is for. */
    interface Named {
        String name();
    }

    /** Of the proxy. */
    static final class Handler implements java.lang.reflect.InvocationHandler {
        String name;

        Handler(String name) {
            this.name = name;
        }

        @Override public Object invoke(Object on, java.lang.reflect.Method method, Object[] given) {
            return method.getName().equals("hashCode") ? (Object)5 : method.getName().equals("equals") ? on == given[0] : name;
        }
    }

    /** A list of a class of its own. */
    static final class Mine extends ArrayList<Object> {
        Mine(List<?> items) {
            super(items);
        }
    }

    /** Constants, one of a class of its own. */
    enum Odd {
        /** */
        ONE,
        /** */
        TWO {
            @Override public String toString() {
                return "two";
            }
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

    /** A value. */
    static final class Person {
        String name;
        int age;

        Person(String name, int age) {
            this.name = name;
            this.age = age;
        }
    }

    /** Writes itself, without names or with some. */
    public static final class Raw implements Binarylizable {
        private int number;
        private String text;
        private boolean isNamed;

        /** */
        public Raw() {
        }

        Raw(int number, String text, boolean isNamed) {
            this.number = number;
            this.text = text;
            this.isNamed = isNamed;
        }

        @Override public void writeBinary(BinaryWriter writer) throws BinaryObjectException {
            if (isNamed)
                writer.writeString("text", text);
            writer.rawWriter().writeInt(number);
            writer.rawWriter().writeString(text);
        }

        @Override public void readBinary(BinaryReader reader) throws BinaryObjectException {
            number = reader.rawReader().readInt();
            text = reader.rawReader().readString();
        }
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import javax.cache.Cache;
import javax.cache.expiry.CreatedExpiryPolicy;
import javax.cache.expiry.Duration;
import org.apache.ignite.IgniteCache;
import org.apache.ignite.Ignition;
import org.apache.ignite.cache.CacheAtomicityMode;
import org.apache.ignite.cache.CacheEntry;
import org.apache.ignite.cache.CacheWriteSynchronizationMode;
import org.apache.ignite.cache.affinity.rendezvous.RendezvousAffinityFunction;
import org.apache.ignite.cache.query.QueryCursor;
import org.apache.ignite.cache.query.ScanQuery;
import org.apache.ignite.cache.query.SqlFieldsQuery;
import org.apache.ignite.cluster.ClusterNode;
import org.apache.ignite.cluster.ClusterState;
import org.apache.ignite.configuration.CacheConfiguration;
import org.apache.ignite.configuration.ClientConnectorConfiguration;
import org.apache.ignite.configuration.DataRegionConfiguration;
import org.apache.ignite.configuration.DataStorageConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.configuration.WALMode;
import org.apache.ignite.internal.IgniteEx;
import org.apache.ignite.internal.management.cdc.CdcCacheDataResendTask;
import org.apache.ignite.internal.management.cdc.CdcDeleteLostSegmentLinksCommandArg;
import org.apache.ignite.internal.management.cdc.CdcDeleteLostSegmentsTask;
import org.apache.ignite.internal.management.cdc.CdcResendCommandArg;
import org.apache.ignite.internal.pagemem.wal.IgniteWriteAheadLogManager;
import org.apache.ignite.internal.pagemem.wal.record.RolloverType;
import org.apache.ignite.internal.pagemem.wal.record.SnapshotRecord;
import org.apache.ignite.internal.processors.cache.version.GridCacheVersion;
import org.apache.ignite.internal.visor.VisorTaskArgument;
import org.apache.ignite.spi.communication.tcp.TcpCommunicationSpi;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;
import org.apache.ignite.spi.encryption.keystore.KeystoreEncryptionSpi;
import org.apache.ignite.ssl.SslContextFactory;
import org.apache.ignite.transactions.Transaction;

/**
 * A node that lives until its stdin ends: WORK CONSISTENT_ID, the rest as properties (see config()).
 *
 * Each line of stdin is a command, its words parted by tabs; each has one line of answer, `ok` or `error` and a
 * text behind a tab.
 */
public final class Live {
    private final IgniteEx node;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, Transaction> transactions = new HashMap<>();

    private Live(IgniteEx node) {
        this.node = node;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what Ignite prints
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            IgniteEx node = (IgniteEx)Ignition.start(config(Path.of(args[0]), args[1]));
            if (Boolean.getBoolean("active"))
                node.cluster().state(ClusterState.ACTIVE);
            Live live = new Live(node);
            live.answer(answers, "ok", "started");
            for (String line = commands.readLine(); line != null; line = commands.readLine())
                live.take(answers, line.split("\t", -1));
        }
        catch (Throwable error) {
            answers.println("error\t" + Shown.text(all(error)));
            error.printStackTrace();
        }
        Ignition.stopAll(true);
        answers.println("ok\t\"stopped\"");
        System.exit(0);
    }

    private static IgniteConfiguration config(Path work, String consistentId) {
        DataRegionConfiguration region = new DataRegionConfiguration()
            .setName("default")
            .setPersistenceEnabled(flag("persistence", true))
            .setCdcEnabled(flag("cdc", true))
            .setInitialSize(16 << 20)
            .setMaxSize(Long.getLong("region", 64) << 20)
            .setCheckpointPageBufferSize(16 << 20);
        DataRegionConfiguration plain = new DataRegionConfiguration()
            .setName("plain").setPersistenceEnabled(true).setInitialSize(16 << 20).setMaxSize(32 << 20)
            .setCheckpointPageBufferSize(8 << 20);
        DataStorageConfiguration storage = new DataStorageConfiguration()
            .setDefaultDataRegionConfiguration(region)
            .setWalMode(WALMode.valueOf(System.getProperty("walMode", "LOG_ONLY")))
            .setWalSegmentSize(Integer.getInteger("segment", 512 * 1024))
            .setWalSegments(4)
            .setWalForceArchiveTimeout(Long.getLong("forceArchive", 500))
            .setCdcWalDirectoryMaxSize(Long.getLong("cdcMax", 0));
        if (flag("plainRegion", false))
            storage.setDataRegionConfigurations(plain);
        if (System.getProperty("cdcPath") != null)
            storage.setCdcWalPath(System.getProperty("cdcPath"));
        TcpDiscoverySpi discovery = new TcpDiscoverySpi();
        discovery.setLocalAddress("127.0.0.1");
        discovery.setLocalPort(Integer.getInteger("discovery"));
        discovery.setLocalPortRange(0);
        List<String> all = new ArrayList<>();
        for (String port : System.getProperty("cluster").split(","))
            all.add("127.0.0.1:" + port);
        discovery.setIpFinder(new TcpDiscoveryVmIpFinder().setAddresses(all));
        TcpCommunicationSpi communication = new TcpCommunicationSpi();
        communication.setLocalAddress("127.0.0.1");
        communication.setLocalPort(Integer.getInteger("communication"));
        communication.setLocalPortRange(0);
        IgniteConfiguration made = new IgniteConfiguration()
            .setIgniteInstanceName(consistentId)
            .setConsistentId(consistentId)
            .setWorkDirectory(work.toString())
            .setDataStorageConfiguration(storage)
            .setDiscoverySpi(discovery)
            .setCommunicationSpi(communication)
            .setConnectorConfiguration(null)
            .setAuthenticationEnabled(flag("authentication", false))
            .setClientConnectorConfiguration(thinClients())
            .setMetricsLogFrequency(0)
            .setSystemThreadPoolSize(4).setPublicThreadPoolSize(4).setQueryThreadPoolSize(4).setStripedPoolSize(4)
            .setPeerClassLoadingEnabled(false);
        if (System.getProperty("keystore") != null) {
            KeystoreEncryptionSpi keys = new KeystoreEncryptionSpi();
            keys.setKeyStorePath(System.getProperty("keystore"));
            keys.setKeyStorePassword("penstock".toCharArray());
            made.setEncryptionSpi(keys);
        }
        return made;
    }

    /** Thin clients; with keys their connections are of TLS, with trusted ones they need a certificate, too. */
    private static ClientConnectorConfiguration thinClients() {
        ClientConnectorConfiguration made = new ClientConnectorConfiguration()
            .setHost("127.0.0.1").setPort(Integer.getInteger("thin")).setPortRange(0);
        if (System.getProperty("tlsKeys") == null)
            return made;
        SslContextFactory tls = new SslContextFactory();
        tls.setKeyStoreType("PKCS12");
        tls.setKeyStoreFilePath(System.getProperty("tlsKeys"));
        tls.setKeyStorePassword("penstock".toCharArray());
        if (System.getProperty("tlsTrusted") == null)
            tls.setTrustManagers(SslContextFactory.getDisabledTrustManager());
        else {
            tls.setTrustStoreType("PKCS12");
            tls.setTrustStoreFilePath(System.getProperty("tlsTrusted"));
            tls.setTrustStorePassword("penstock".toCharArray());
        }
        return made.setSslEnabled(true).setUseIgniteSslContextFactory(false)
            .setSslClientAuth(System.getProperty("tlsTrusted") != null).setSslContextFactory(tls);
    }

    private static boolean flag(String name, boolean otherwise) {
        return Boolean.parseBoolean(System.getProperty(name, "" + otherwise));
    }

    private static String all(Throwable error) {
        StringWriter text = new StringWriter();
        for (Throwable one = error; one != null; one = one.getCause())
            text.append(one == error ? "" : "; ").append(one.getClass().getSimpleName() + ": " + one.getMessage());
        return text.toString();
    }

    private void answer(PrintStream answers, String word, String text) {
        answers.println(word + "\t" + Shown.text(text));
        answers.flush();
    }

    private void take(PrintStream answers, String[] words) {
        try {
            answers.println("ok\t" + run(words));
        }
        catch (Throwable error) {
            answers.println("error\t" + Shown.text(all(error)));
            error.printStackTrace();
        }
        answers.flush();
    }

    /** JSON of the answer. */
    private String run(String[] words) throws Exception {
        switch (words[0]) {
            case "create":
                node.createCache(cache(words));
                return "null";
            case "destroy":
                node.destroyCache(words[1]);
                return "null";
            case "put": // CACHE KEY TEXT [MS]
                expiring(words[1], words.length > 4 ? Long.parseLong(words[4]) : 0)
                    .put(Integer.parseInt(words[2]), words[3]);
                return "null";
            case "person": // CACHE KEY NAME AGE
                expiring(words[1], 0).put(Integer.parseInt(words[2]),
                    new Node.Person(words[3], Integer.parseInt(words[4])));
                return "null";
            case "fill": // CACHE FROM TO LENGTH
                fill(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                return "null";
            case "remove":
                return "" + expiring(words[1], 0).remove(Integer.parseInt(words[2]));
            case "clear":
                node.cache(words[1]).clear();
                return "null";
            case "opaque": // CACHE KEY
                expiring(words[1], 0).put(Integer.parseInt(words[2]), new Node.Opaque());
                return "null";
            case "scenario":
                Node.scenario(words[1], node);
                return "null";
            case "sql":
                return rows(words[1]);
            case "scan":
                return scan(words[1]);
            case "tx": // begin|put|remove|commit|rollback NAME ...
                return transaction(words);
            case "property":
                return property(words[1], words[2]);
            case "resend":
                return resend(words[1].split(","));
            case "deleteLost":
                return deleteLost();
            case "rotate":
                return rotate();
            case "wal":
                return "[" + wal().currentSegment() + ", " + wal().lastArchivedSegment() + "]";
            case "state":
                node.cluster().state(ClusterState.valueOf(words[1]));
                return "null";
            case "baseline":
                node.cluster().setBaselineTopology(node.cluster().topologyVersion());
                return "null";
            case "nodes":
                return "" + node.cluster().forServers().nodes().size();
            case "settled": // whether nothing is being rebalanced
                return "" + node.context().cache().context().exchange().lastFinishedFuture().rebalanced();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private CacheConfiguration<Integer, Object> cache(String[] words) {
        CacheConfiguration<Integer, Object> made = new CacheConfiguration<>(words[1]);
        Map<String, String> given = new TreeMap<>();
        for (String word : Arrays.asList(words).subList(2, words.length))
            given.put(word.split("=")[0], word.split("=")[1]);
        made.setAtomicityMode(CacheAtomicityMode.valueOf(given.getOrDefault("atomicity", "ATOMIC")));
        made.setAffinity(new RendezvousAffinityFunction(false, Integer.parseInt(given.getOrDefault("partitions", "8"))));
        made.setBackups(Integer.parseInt(given.getOrDefault("backups", "0")));
        made.setWriteSynchronizationMode(CacheWriteSynchronizationMode.FULL_SYNC);
        made.setGroupName(given.get("group"));
        made.setDataRegionName(given.get("region"));
        made.setEncryptionEnabled(Boolean.parseBoolean(given.get("encryption")));
        if (given.containsKey("expiry")) {
            made.setExpiryPolicyFactory(CreatedExpiryPolicy.factoryOf(
                new Duration(TimeUnit.MILLISECONDS, Long.parseLong(given.get("expiry")))));
        }
        return made;
    }

    private IgniteCache<Object, Object> expiring(String name, long ms) {
        IgniteCache<Object, Object> cache = node.cache(name);
        return ms == 0 ? cache
            : cache.withExpiryPolicy(new CreatedExpiryPolicy(new Duration(TimeUnit.MILLISECONDS, ms)));
    }

    private void fill(String name, int from, int to, int length) {
        Map<Object, Object> batch = new TreeMap<>();
        for (int key = from; key < to; key++) {
            batch.put(key, new Node.Person("p".repeat(length) + key, key));
            if (batch.size() == 500 || key + 1 == to) {
                node.cache(name).putAll(batch);
                batch.clear();
            }
        }
    }

    private String rows(String text) {
        List<String> shown = new ArrayList<>();
        for (List<?> row : node.context().query().querySqlFields(
            new SqlFieldsQuery(text).setSchema("PUBLIC"), true).getAll()) {
            List<String> cells = new ArrayList<>();
            for (Object cell : row)
                cells.add(Shown.of(cell));
            shown.add(cells.toString());
        }
        return shown.toString();
    }

    /** Every entry of a cache: key, value, version, all as events show them. */
    private String scan(String name) {
        IgniteCache<Object, Object> cache = node.cache(name).withKeepBinary();
        List<String> shown = new ArrayList<>();
        try (QueryCursor<Cache.Entry<Object, Object>> all = cache.query(new ScanQuery<>())) {
            for (Cache.Entry<Object, Object> one : all) {
                CacheEntry<Object, Object> entry = cache.getEntry(one.getKey());
                GridCacheVersion version = entry == null ? null : (GridCacheVersion)entry.version();
                shown.add("[" + Shown.of(one.getKey()) + ", " + Shown.of(one.getValue()) + ", "
                    + (version == null ? "null" : "[" + version.topologyVersion() + ", " + version.order() + ", "
                    + version.nodeOrder() + ", " + version.dataCenterId() + "]") + "]");
            }
        }
        return shown.toString();
    }

    private String transaction(String[] words) throws Exception {
        String name = words[2];
        Callable<String> step;
        switch (words[1]) {
            case "begin":
                threads.put(name, Executors.newSingleThreadExecutor());
                step = () -> {
                    transactions.put(name, node.transactions().txStart());
                    return "null";
                };
                break;
            case "put": // NAME CACHE KEY TEXT
                step = () -> {
                    node.cache(words[3]).put(Integer.parseInt(words[4]), words[5]);
                    return "null";
                };
                break;
            case "remove": // NAME CACHE KEY
                step = () -> "" + node.cache(words[3]).remove(Integer.parseInt(words[4]));
                break;
            default:
                step = () -> {
                    try (Transaction open = transactions.remove(name)) {
                        if (words[1].equals("commit"))
                            open.commit();
                        else
                            open.rollback();
                    }
                    return "null";
                };
        }
        String shown = threads.get(name).submit(step).get();
        if (!transactions.containsKey(name))
            threads.remove(name).shutdown();
        return shown;
    }

    private String property(String name, String text) throws Exception {
        var property = node.context().distributedConfiguration().property(name);
        property.propagate(property.parse(text));
        return "null";
    }

    private String resend(String[] caches) throws Exception {
        CdcResendCommandArg argument = new CdcResendCommandArg();
        argument.caches(caches);
        node.compute().execute(new CdcCacheDataResendTask(), new VisorTaskArgument<>(servers(), argument, false))
            .result();
        return "null";
    }

    private String deleteLost() throws Exception {
        node.compute().execute(new CdcDeleteLostSegmentsTask(),
            new VisorTaskArgument<>(servers(), new CdcDeleteLostSegmentLinksCommandArg(), false)).result();
        return "null";
    }

    private List<java.util.UUID> servers() {
        List<java.util.UUID> found = new ArrayList<>();
        for (ClusterNode one : node.cluster().forServers().nodes())
            found.add(one.id());
        return found;
    }

    private IgniteWriteAheadLogManager wal() {
        return node.context().cache().context().wal();
    }

    /** The active segment ends; its number. */
    private String rotate() throws Exception {
        var database = node.context().cache().context().database();
        long before = wal().currentSegment();
        database.checkpointReadLock();
        try {
            wal().log(new SnapshotRecord(1, false), RolloverType.CURRENT_SEGMENT);
        }
        finally {
            database.checkpointReadUnlock();
        }
        return "" + before;
    }
}

import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.TreeSet;
import org.apache.ignite.binary.BinaryType;
import org.apache.ignite.cdc.CdcCacheEvent;
import org.apache.ignite.cdc.CdcConfiguration;
import org.apache.ignite.cdc.CdcConsumer;
import org.apache.ignite.cdc.CdcEvent;
import org.apache.ignite.cdc.TypeMapping;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.internal.cdc.CdcMain;
import org.apache.ignite.internal.processors.cache.version.GridCacheVersion;
import org.apache.ignite.metric.MetricRegistry;

/**
 * Runs Ignite's own utility on a node's directory; every call of its consumer is one line of JSON.
 *
 * WORK CONSISTENT_ID EVENTS_PER_CALL OUT: each call takes so many events and commits; 0 takes all.
 */
public final class Calls implements CdcConsumer {
    private static final int IDLE_ROUNDS = 6;

    private final int eventsPerCall;
    private final PrintStream out;
    private final Path state;
    private final Path mode;
    private int idle;

    private Calls(int eventsPerCall, PrintStream out, Path states) {
        this.eventsPerCall = eventsPerCall;
        this.out = out;
        state = states.resolve("cdc-wal-state.bin");
        mode = states.resolve("cdc-mode.bin");
    }

    public static void main(String[] args) throws Exception {
        Path work = Path.of(args[0]);
        IgniteConfiguration config = Node.config(work, args[1]);
        Path states = work.resolve("db/wal/cdc").resolve(args[1].replace('-', '_')).resolve("state");
        try (PrintStream out = new PrintStream(Files.newOutputStream(Path.of(args[3])), true, "UTF-8")) {
            CdcConfiguration cdc = new CdcConfiguration();
            cdc.setConsumer(new Calls(Integer.parseInt(args[2]), out, states));
            cdc.setCheckFrequency(100);
            new CdcMain(config, null, cdc).run();
        }
    }

    private void line(String call, String rest) {
        try {
            String saved = Files.exists(state) ? hex(Files.readAllBytes(state)) : "";
            String active = Files.exists(mode) ? hex(Files.readAllBytes(mode)) : "";
            out.println("{\"call\": \"" + call + "\", \"state\": \"" + saved + "\", \"mode\": \"" + active + "\""
                + rest + "}");
        }
        catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static String hex(byte[] bytes) {
        StringBuilder shown = new StringBuilder();
        for (byte one : bytes)
            shown.append(String.format("%02x", one));
        return shown.toString();
    }

    @Override public void start(MetricRegistry registry) {
        line("start", "");
    }

    @Override public boolean onEvents(Iterator<CdcEvent> events) {
        idle = 0;
        List<String> shown = new ArrayList<>();
        while ((eventsPerCall == 0 || shown.size() < eventsPerCall) && events.hasNext())
            shown.add(event(events.next()));
        line("onEvents", ", \"events\": [" + String.join(", ", shown) + "]");
        return true;
    }

    private static String event(CdcEvent event) {
        GridCacheVersion version = (GridCacheVersion)event.version();
        return "{\"cacheId\": " + event.cacheId() + ", \"key\": " + Shown.of(event.key())
            + ", \"value\": " + Shown.of(event.value()) + ", \"primary\": " + event.primary()
            + ", \"partition\": " + event.partition() + ", \"version\": [" + version.topologyVersion() + ", "
            + version.order() + ", " + version.nodeOrder() + ", " + version.clusterId()
            + "], \"expireTime\": " + event.expireTime() + "}";
    }

    @Override public void onTypes(Iterator<BinaryType> types) {
        List<String> shown = new ArrayList<>();
        while (types.hasNext()) {
            BinaryType type = types.next();
            List<String> fields = new ArrayList<>();
            for (String name : new TreeSet<>(type.fieldNames()))
                fields.add(Shown.text(name) + ": " + Shown.text(type.fieldTypeName(name)));
            shown.add("[" + type.typeId() + ", " + Shown.text(type.typeName()) + ", " + type.isEnum()
                + ", {" + String.join(", ", fields) + "}]");
        }
        line("onTypes", ", \"types\": " + shown);
    }

    @Override public void onMappings(Iterator<TypeMapping> mappings) {
        List<String> shown = new ArrayList<>();
        while (mappings.hasNext()) {
            TypeMapping one = mappings.next();
            shown.add("[" + one.typeId() + ", " + Shown.text(one.typeName()) + ", " + Shown.text("" + one.platformType())
                + "]");
        }
        line("onMappings", ", \"mappings\": " + shown);
    }

    @Override public void onCacheChange(Iterator<CdcCacheEvent> caches) {
        List<String> shown = new ArrayList<>();
        while (caches.hasNext()) {
            CdcCacheEvent one = caches.next();
            shown.add("[" + one.cacheId() + ", " + Shown.text(one.configuration().getName()) + "]");
        }
        line("onCacheChange", ", \"caches\": " + shown);
    }

    @Override public void onCacheDestroy(Iterator<Integer> caches) {
        List<String> shown = new ArrayList<>();
        while (caches.hasNext())
            shown.add("" + caches.next());
        line("onCacheDestroy", ", \"caches\": " + shown);
    }

    @Override public boolean alive() {
        return idle++ < IDLE_ROUNDS;
    }

    @Override public void stop() {
        line("stop", "");
    }
}

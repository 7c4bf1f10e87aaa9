import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Iterator;
import org.apache.ignite.binary.BinaryType;
import org.apache.ignite.cdc.CdcCacheEvent;
import org.apache.ignite.cdc.CdcConfiguration;
import org.apache.ignite.cdc.CdcConsumer;
import org.apache.ignite.cdc.CdcEvent;
import org.apache.ignite.cdc.TypeMapping;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.internal.cdc.CdcMain;
import org.apache.ignite.metric.MetricRegistry;

/**
 * Ignite's own utility with a consumer that only counts: WORK CONSISTENT_ID OUT.
 *
 * Writes the events, and the seconds from the consumer's start to the end of its last call with events.
 */
public final class Count implements CdcConsumer {
    private static final int IDLE_ROUNDS = 5;

    private long begun;
    private long ended;
    private long count;
    private int idle;

    public static void main(String[] args) throws Exception {
        Count consumer = new Count();
        IgniteConfiguration config = Node.config(Path.of(args[0]), args[1]);
        CdcConfiguration cdc = new CdcConfiguration();
        cdc.setConsumer(consumer);
        cdc.setCheckFrequency(100);
        new CdcMain(config, null, cdc).run();
        try (PrintStream out = new PrintStream(Files.newOutputStream(Path.of(args[2])))) {
            out.println(consumer.count + " " + (consumer.ended - consumer.begun) / 1e9);
        }
    }

    @Override public void start(MetricRegistry registry) {
        begun = System.nanoTime();
    }

    @Override public boolean onEvents(Iterator<CdcEvent> events) {
        idle = 0;
        long before = count;
        while (events.hasNext()) {
            events.next();
            count++;
        }
        if (count > before)
            ended = System.nanoTime();
        return true;
    }

    @Override public void onTypes(Iterator<BinaryType> types) {
        types.forEachRemaining(one -> { });
    }

    @Override public void onMappings(Iterator<TypeMapping> mappings) {
        mappings.forEachRemaining(one -> { });
    }

    @Override public void onCacheChange(Iterator<CdcCacheEvent> caches) {
        caches.forEachRemaining(one -> { });
    }

    @Override public void onCacheDestroy(Iterator<Integer> caches) {
        caches.forEachRemaining(one -> { });
    }

    @Override public boolean alive() {
        return idle++ < IDLE_ROUNDS;
    }

    @Override public void stop() {
    }
}

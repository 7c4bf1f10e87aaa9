import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Reads messages with Kafka Connect's JsonConverter, and makes rows of them with Debezium's
 * ExtractNewRecordState.
 *
 * Lines of the input: topic, key and value in base64 or "-" for null, with tabs between. Lines of
 * the output: key and value as JSON without schemas; a line "dropped" where there is no record.
 */
public final class Judge {
    private Judge() {}

    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = converter(true, true);
        JsonConverter values = converter(false, true);
        JsonConverter shownKeys = converter(true, false);
        JsonConverter shownValues = converter(false, false);
        try (ExtractNewRecordState<SourceRecord> rows = new ExtractNewRecordState<>()) {
            rows.configure(Map.of("delete.tombstone.handling.mode", arguments[0]));
            BufferedReader in =
                    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] parts = line.split("\t");
                SchemaAndValue key = keys.toConnectData(parts[0], bytes(parts[1]));
                SchemaAndValue value = values.toConnectData(parts[0], bytes(parts[2]));
                SourceRecord record =
                        new SourceRecord(
                                Map.of(), Map.of(), parts[0], 0, key.schema(), key.value(),
                                value.schema(), value.value());
                SourceRecord row = rows.apply(record);
                if (row == null) {
                    System.out.println("dropped");
                    continue;
                }
                System.out.println(
                        text(shownKeys.fromConnectData(row.topic(), row.keySchema(), row.key()))
                                + "\t"
                                + text(
                                        shownValues.fromConnectData(
                                                row.topic(), row.valueSchema(), row.value())));
            }
        }
    }

    private static JsonConverter converter(boolean isKey, boolean hasSchemas) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", hasSchemas), isKey);
        return made;
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }

    private static String text(byte[] json) {
        return json == null ? "null" : new String(json, StandardCharsets.UTF_8);
    }
}
